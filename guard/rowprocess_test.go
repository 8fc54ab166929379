package guard_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	lockRow = "LockRow"
	twoStep = "TwoStep"
)

var errTwo = errors.New("two at once")

// rowMain works on a row repeatedly, and names it by one of two keys. On the order
// "die" it kills itself in the transaction, or in the call.
func rowMain(ctx context.Context, db *notify.DB, t childInput) error {
	orders := listen()
	die := func() {
		select {
		case <-orders:
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		default:
		}
	}
	// A second holder of the row would count from the same number.
	count := func(ctx context.Context, tx *sqlx.Tx) error {
		var n int
		if err := tx.GetContext(ctx, &n, "SELECT n FROM resource WHERE id = 1"); err != nil {
			return err
		}
		if t.Kind == lockRow {
			die()
		}
		if _, err := tx.ExecContext(ctx, "DO SLEEP(0.001)"); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE resource SET n = ?, written = n, process = ? WHERE id = 1", n+1, os.Getpid())
		return err
	}
	// The call is outside the database. It detects two callers at once by a lock that
	// ends with the process.
	call := func(ctx context.Context) error {
		file, err := os.OpenFile(t.Name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		defer func() { _ = file.Close() }()
		if syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
			return errTwo
		}
		die()
		if _, err := db.Pool().ExecContext(ctx, "DO SLEEP(0.002)"); err != nil {
			return err
		}
		_, err = file.WriteString(".")
		return err
	}
	keys := []guard.RowRef{
		{Table: "resource", Key: "id", Value: 1}, {Table: "resource", Key: "id", Value: "01"},
		{Table: "resource", Key: "owner", Value: "one"}, {Table: "resource", Key: "owner", Value: "ONE"},
	}
	random := t.random()
	for {
		key := keys[random.IntN(len(keys))]
		var err error
		if t.Kind == lockRow {
			err = guard.LockRow(ctx, db, key, 0, count)
		} else {
			err = guard.TwoStep{Call: call, Finish: count, TTL: t.TTL, Margin: t.TTL / 2}.Do(ctx, db, key)
		}
		switch {
		case err == nil:
			say("worked: done")
		case errors.Is(err, notify.ErrUnknown):
			say("worked: unknown")
		case errors.Is(err, notify.ErrNotAcquired):
			say("worked: busy")
		default:
			say("worked: %v", err)
		}
		<-time.After(10 * time.Millisecond) // it is another one's turn
	}
}

// A row has one holder at a time, and so has the external call for it: processes name
// it by one key or another, are killed with kill -9, and half of them lose
// their connections. Work that was reported as done is done, once.
func TestRowProcesses(t *testing.T) {
	rounds, each := mysqltest.Many(1, 2, 30), mysqltest.Many(4, 6, 40)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, kind := range mysqltest.Some(t, []string{lockRow, twoStep}) {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				random := mysqltest.Random(t)
				calls := filepath.Join(t.TempDir(), "calls")
				proxy := s.Proxy(t)
				w := startWorkers(t, s, childInput{Role: "row", Kind: kind, Name: calls, TTL: 6 * time.Second}, halfThrough(s, proxy), mysqltest.Many(3, 4, 4))
				for range rounds {
					w.cut(proxy, each)
					victim := random.IntN(len(w.all))
					w.all[victim].send("die")
					mysqltest.Await(t, w.all[victim].ended, "its death")
					if kind == twoStep && !mysqltest.Long() { // a dead one's lease is the one that lasts
						mysqltest.Exec(t, w.db.Pool(), "UPDATE mqnotify_lease SET expires_at = UTC_TIMESTAMP(6) WHERE expires_at > UTC_TIMESTAMP(6)")
					}
					w.goOn(1) // when the server, or the lease's end, has given the row to the others
					w.replace(victim)
				}
				w.goOn(each)
				w.stop()
				require.Zero(t, w.errs[errTwo.Error()], "two callers at once")
				require.Zero(t, w.twice(), "two holders at once")
				var done, works int // in one statement: the server may still end what they had sent
				require.NoError(t, w.db.Pool().QueryRowContext(t.Context(), "SELECT (SELECT n FROM resource), (SELECT COUNT(*) FROM works)").Scan(&done, &works))
				require.Equal(t, done, works)
				require.GreaterOrEqual(t, done, w.errs["done"])
				require.LessOrEqual(t, done, w.errs["done"]+w.errs["unknown"]+rounds+len(w.all), "one was killed before it could say so")
				if kind == twoStep {
					called, err := os.ReadFile(calls)
					require.NoError(t, err)
					require.LessOrEqual(t, done, len(called), "noted without a call")
				}
				t.Logf("%s: %d times by %d processes, %d of them killed with kill -9, connections of half of them cut %d times, nobody at the same time: %v",
					kind, done, len(w.all)+rounds, rounds, cuts*rounds, w.errs)
			})
		}
	})
}
