package doctor

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
)

// sameSession checks that all statements of a connection reach one session of the server, and that no other connection's statements reach
// this session. It uses two connections in turn, because a proxy that shares sessions among its clients assigns a session to every
// statement, or gives a session that one client leaves idle to another.
func sameSession(ctx context.Context, e *exam) ([]Result, error) {
	other, err := e.open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = other.Close() }() // it holds no lock and no transaction

	connections := []*core.Session{e.session, other}
	marks := map[*core.Session]string{}
	for _, c := range connections {
		marks[c] = rand.Text()
		err := c.Do(ctx, func(conn *sqlx.Conn) error {
			_, err := conn.ExecContext(ctx, "SET @mqnotify_doctor = ?", marks[c])
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	const rounds = 20 // so that other clients of a busy proxy interfere
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for range rounds {
		for _, c := range connections {
			var is struct {
				ID   uint64 `db:"id"`
				Mark string `db:"mark"`
			}
			err := c.Do(ctx, func(conn *sqlx.Conn) error {
				return conn.GetContext(ctx, &is, "SELECT CONNECTION_ID() AS id, COALESCE(@mqnotify_doctor, '') AS mark")
			})
			switch {
			case err != nil:
				return nil, err
			case is.ID != c.ID():
				return shared("statements of one connection reach several sessions (%d, then %d)", c.ID(), is.ID)
			case is.Mark != marks[c]:
				return shared("another client's statements reach the same session (%d)", is.ID)
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	return []Result{ok("all statements of a connection reach one session (%d)", e.session.ID())}, nil
}

func shared(how string, sessions ...any) ([]Result, error) {
	return []Result{problem("connect to the server itself, or switch multiplexing off for this account; no further check is possible through the proxy",
		how+": a proxy shares sessions among its clients. Advisory locks and transactions do not work through it", sessions...)}, errEnough
}
