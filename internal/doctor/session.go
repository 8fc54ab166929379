package doctor

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/jmoiron/sqlx"
)

// sameSession tells whether the statements of a connection reach one session of
// the server. A proxy that shares sessions among its clients deals them out
// anew, at the latest when one of its sessions is busy; so one is kept busy.
func sameSession(ctx context.Context, e *exam) ([]Result, error) {
	other, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	busy := make(chan error, 1)
	go func() {
		busy <- other.Do(ctx, func(conn *sqlx.Conn) error {
			_, err := conn.ExecContext(ctx, "DO SLEEP(0.2)")
			return err
		})
	}()
	defer func() {
		cancel()
		_ = other.Close() // returns when nothing runs on it any more
	}()

	mark := rand.Text()
	err = e.session.Do(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, "SET @mqnotify_doctor = ?", mark)
		return err
	})
	if err != nil {
		return nil, err
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		var is struct {
			ID   uint64 `db:"id"`
			Mark string `db:"mark"`
		}
		if err := e.get(ctx, &is, "SELECT CONNECTION_ID() AS id, COALESCE(@mqnotify_doctor, '') AS mark"); err != nil {
			return nil, err
		}
		if is.ID != e.session.ID() || is.Mark != mark {
			return []Result{problem("connect to the server itself, or switch multiplexing off for this account; the rest can't be checked this way",
				"statements of one connection reach several sessions (%d, then %d): a proxy shares them among its clients. "+
					"Advisory locks and transactions do not work through it", e.session.ID(), is.ID)}, errEnough
		}
		select {
		case err := <-busy:
			if err != nil {
				return nil, err
			}
			return []Result{ok("statements of a connection reach one session (%d)", e.session.ID())}, nil
		case <-tick.C:
		}
	}
}
