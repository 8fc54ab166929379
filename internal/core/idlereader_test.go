package core_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func awaitReadAhead(t *testing.T, session *core.Session) {
	t.Helper()
	require.Eventually(t, session.ReadsAhead, patience, time.Millisecond, "an idle connection is not read")
}

// awaitGone waits until the killed session no longer exists on the server.
func awaitGone(t *testing.T, admin *sql.DB, id uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return !killIfThere(t, admin, "CONNECTION", id) }, patience, tick)
}

// If a session ends while a caller of Do has it and runs no statement, the session is lost when Do returns.
func TestSessionEndsDuringDo(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		for _, asks := range []bool{false, true} {
			session := openSession(t, db, never)
			awaitReadAhead(t, session)
			err := session.Do(t.Context(), func(conn *sqlx.Conn) error {
				kill(t, s.Admin(t), "CONNECTION", session.ID())
				awaitGone(t, s.Admin(t), session.ID())
				if !asks {
					return nil
				}
				_, err := conn.ExecContext(t.Context(), "DO 1")
				return err
			})
			require.Equal(t, asks, err != nil)
			mysqltest.Await(t, session.Lost(), "the loss")
		}
	})
}

// The end of a context does not hide what a caller of Do said about its statements, such as that a commit may have happened.
func TestErrorOutlivesTheContext(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		said, cause := errors.New("said"), errors.New("cause")
		for _, within := range []bool{false, true} {
			session := openSession(t, db, never)
			ctx, cancel := context.WithCancelCause(t.Context())
			err := session.Do(ctx, func(conn *sqlx.Conn) error {
				f := func(ctx context.Context) error {
					kill(t, s.Admin(t), "CONNECTION", session.ID())
					awaitGone(t, s.Admin(t), session.ID())
					_, err := conn.ExecContext(ctx, "DO 1")
					require.Error(t, err)
					cancel(cause)
					return fmt.Errorf("%w: %w", said, err)
				}
				if within {
					return session.Within(ctx, time.Hour, f)
				}
				return f(t.Context())
			})
			require.ErrorIs(t, err, said)
			require.ErrorIs(t, err, cause)
		}
	})
}

// A context that ends in Within, or its limit, closes the session, although the statement's own context does not end.
// A context that has ended before changes nothing.
func TestWithin(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		other := openSession(t, db, never)
		mustLock(t, other, lockName(db))
		ask := func(ctx context.Context, session *core.Session, limit time.Duration) error {
			return session.Do(t.Context(), func(conn *sqlx.Conn) error {
				return session.Within(ctx, limit, func(ctx context.Context) error {
					require.Nil(t, ctx.Done())
					_, err := conn.ExecContext(ctx, "DO GET_LOCK(?, 3600)", lockName(db))
					return err
				})
			})
		}
		session := openSession(t, db, never)
		ctx, cancel := context.WithCancelCause(t.Context())
		asked := mysqltest.Result(func() error { return ask(ctx, session, time.Hour) })
		mysqltest.AwaitState(t, s.Admin(t), session.ID(), waiting)
		cancel(errOurs)
		require.ErrorIs(t, mysqltest.Receive(t, asked), errOurs)
		require.ErrorIs(t, session.Err(), errOurs)

		session = openSession(t, db, never)
		require.ErrorIs(t, ask(ctx, session, time.Hour), errOurs)
		require.Equal(t, 1, value[int](t, session, "SELECT 1"))
		require.ErrorContains(t, ask(t.Context(), session, time.Millisecond), "did not answer in time")
		require.Error(t, session.Err())
	})
}
