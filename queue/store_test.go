package queue

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Two transactions that lock two tasks in opposite order cause a deadlock. The server rolls one of them back, and
// transact repeats it.
func TestTransactAfterADeadlock(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		enqueue(t, q, "a", "b")
		var retried atomic.Uint64
		ids := mysqltest.Values[uint64](t, db.Pool(), "SELECT id FROM mqnotify_task ORDER BY id")
		begun := map[uint64]chan struct{}{ids[0]: make(chan struct{}), ids[1]: make(chan struct{})}
		run := func(first, second uint64) <-chan error {
			l := newStore(t, db, true)
			l.retried = func() { retried.Add(1) }
			attempts := 0
			return mysqltest.Result(func() error {
				return l.transact(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
					const lock = "UPDATE mqnotify_task SET attempts = attempts + 1 WHERE id = ?"
					if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
						return err
					}
					if _, err := conn.ExecContext(ctx, lock, first); err != nil {
						return err
					}
					if attempts++; attempts == 1 {
						close(begun[first])
						<-begun[second]
					}
					if _, err := conn.ExecContext(ctx, lock, second); err != nil {
						return err
					}
					_, err := conn.ExecContext(ctx, "COMMIT")
					return err
				})
			})
		}
		one, two := run(ids[0], ids[1]), run(ids[1], ids[0])
		require.NoError(t, mysqltest.Receive(t, one))
		require.NoError(t, mysqltest.Receive(t, two))
		require.NotZero(t, retried.Load())
		require.Equal(t, []int{2, 2}, mysqltest.Values[int](t, db.Pool(), "SELECT attempts FROM mqnotify_task ORDER BY id"))
	})
}

// An error of a packet's reader is the error of the packet, and the session stays usable.
func TestPacketWhoseRowIsRefused(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		l := newStore(t, db, true)
		refused := errors.New("the row is refused")
		err := l.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
			var p packet
			p.add(func(*sql.Rows) error { return refused }, "SELECT 1")
			p.add(nil, "DO 0")
			return p.send(ctx, conn)
		})
		require.ErrorIs(t, err, refused)
		var n int
		err = l.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
			var p packet
			p.add(func(rows *sql.Rows) error { return rows.Scan(&n) }, "SELECT 2")
			return p.send(ctx, conn)
		})
		require.NoError(t, err)
		require.Equal(t, 2, n)
	})
}
