package guard_test

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// If a wait ends while the server is away, its error does not say that the lock is held, but
// why the server could not be asked, even if the lock was held before.
func TestMutexServerAway(t *testing.T) {
	mysqltest.NotShort(t, "TestLockWaitsThroughARestart")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		direct := openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), direct.Pool()))
		enough := errors.New("enough")
		for kind, open := range mutexes {
			proxy := s.Proxy(t)
			var dials atomic.Int64
			dialed := proxy.Config(config)
			dialed.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				dials.Add(1)
				return new(net.Dialer).DialContext(ctx, network, addr)
			}
			through := openDB(t, dialed)
			m, err := open(through, kind)
			require.NoError(t, err)
			holder, err := open(direct, kind)
			require.NoError(t, err)
			held := mustLock(t, holder)

			if kind != "advisory" { // which waits in the server, and fails with the connection
				ctx, cancel := context.WithCancelCause(t.Context())
				failed := mysqltest.Result(func() error { _, err := m.Lock(ctx); return err })
				require.Eventually(t, func() bool { return through.Pool().Stats().OpenConnections > 0 }, patience, tick)
				proxy.Down()
				before := dials.Load()
				require.Eventually(t, func() bool { return dials.Load() > before+3 }, patience, tick) // it has been refused
				cancel(enough)
				err = mysqltest.Receive(t, failed)
				require.ErrorIs(t, err, enough)
				var refused *net.OpError
				require.ErrorAs(t, err, &refused)
				require.NotErrorIs(t, err, notify.ErrNotAcquired, kind)
				proxy.Up()
			}

			// The server does not answer at all.
			proxy.Freeze()
			ctx, stop := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, enough)
			_, err = m.Lock(ctx)
			stop()
			require.ErrorIs(t, err, enough)
			require.NotErrorIs(t, err, notify.ErrNotAcquired, kind)
			require.NoError(t, held.Release(t.Context()))
		}
	})
}

// A caller that loses the connection while it takes a lock, or releases it, finds out what the
// server did: no lock stays taken without a holder.
func TestMutexConnectionLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for kind, test := range map[string]struct{ table, blocksTaking, taken, release, free string }{
			// An INSERT waits for the end of a transaction that deletes the row.
			"row":   {schema.RowMutexTable, "DELETE FROM mqnotify_mutex_row", "taker <> 'somebody'", "DELETE", "TRUE"},
			"flag":  {schema.FlagMutexTable, "SELECT * FROM mqnotify_mutex_flag FOR UPDATE", "held", "UPDATE", "held"},
			"lease": {schema.LeaseTable, "SELECT * FROM mqnotify_lease FOR UPDATE", "expires_at > UTC_TIMESTAMP(6)", "UPDATE", "expires_at IS NOT NULL"},
		} {
			t.Run(kind, func(t *testing.T) {
				config := s.Database(t)
				direct := openDB(t, config)
				require.NoError(t, schema.Init(t.Context(), direct.Pool()))
				proxy := s.Proxy(t)
				m, err := mutexes[kind](openDB(t, proxy.Config(config)), "x")
				require.NoError(t, err)
				require.NoError(t, mustLock(t, m).Release(t.Context())) // connected, and the row made
				if kind == "row" {
					mysqltest.Exec(t, direct.Pool(), "INSERT INTO mqnotify_mutex_row VALUES ('x', 'somebody', UTC_TIMESTAMP(6))")
				}
				count := "SELECT COUNT(*) FROM " + test.table + " WHERE "

				held := answerLost(t, direct, proxy, test.blocksTaking, "INSERT%", count+test.taken, 1, func() guard.Held {
					held, err := m.TryLock(t.Context())
					assert.NoError(t, err)
					return held
				})
				require.NotNil(t, held)
				require.NoError(t, held.Err())
				_, err = m.TryLock(t.Context())
				require.ErrorIs(t, err, notify.ErrNotAcquired)

				released := answerLost(t, direct, proxy, "SELECT * FROM "+test.table+" FOR UPDATE", test.release+"%", count+test.free, 0, func() error {
					return held.Release(t.Context())
				})
				require.NoError(t, released, "the very call that released it")
				require.NoError(t, mustLock(t, m).Release(t.Context()))
			})
		}
	})
}

// If a context ends while the server takes the lock, the attempt waits for the answer and releases the lock. Without the wait,
// the server might take the lock after the release, for no caller.
func TestMutexContextEnds(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for kind, test := range map[string]struct{ blocksTaking, release string }{
			"row":  {"INSERT mqnotify_mutex_row VALUES ('x', 'somebody', UTC_TIMESTAMP(6))", "DELETE%"}, // the server may list it for a moment after its answer
			"flag": {"SELECT * FROM mqnotify_mutex_flag FOR UPDATE", "UPDATE%"},
		} {
			t.Run(kind, func(t *testing.T) {
				db, _ := openState(t, s)
				m, err := mutexes[kind](db, "x")
				require.NoError(t, err)
				require.NoError(t, mustLock(t, m).Release(t.Context())) // the row is made
				tx, err := db.Pool().BeginTxx(t.Context(), nil)
				require.NoError(t, err)
				defer func() { _ = tx.Rollback() }()
				_, err = tx.ExecContext(t.Context(), test.blocksTaking)
				require.NoError(t, err)

				enough := errors.New("enough")
				ctx, cancel := context.WithCancelCause(t.Context())
				ended := mysqltest.Result(func() error { _, err := m.TryLock(ctx); return err })
				require.Eventually(t, func() bool { return waiting(t, db, "INSERT INTO%") > 0 }, patience, tick)
				cancel(enough)
				for begun := time.Now(); time.Since(begun) < time.Second; { // on this goroutine, so that no question is under way when the test ends
					mysqltest.Window(t, tick)
					require.Zero(t, waiting(t, db, test.release), "it left its statement alone")
				}
				require.NoError(t, tx.Rollback())
				require.ErrorIs(t, mysqltest.Receive(t, ended), enough)
				held, err := m.TryLock(t.Context())
				require.NoError(t, err, "it kept the lock")
				require.NoError(t, held.Release(t.Context()))
			})
		}
	})
}

// A statement that frees a key or a lock of any holder is not repeated after a lost answer, because by then
// the next holder may have it.
func TestReleaseIsNotRepeated(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		// take takes it, and fails if it is taken; free makes it free.
		type made struct {
			take func() error
			free func(ctx context.Context) (bool, error)
		}
		mutex := func(kind string) func(t *testing.T, db *notify.DB) made {
			return func(t *testing.T, db *notify.DB) made {
				m, err := mutexes[kind](db, "x")
				require.NoError(t, err)
				return made{
					take: func() error { _, err := m.TryLock(t.Context()); return err },
					free: m.Break,
				}
			}
		}
		through := func(ours bool, err error) error {
			if err == nil && !ours {
				err = notify.ErrNotAcquired
			}
			return err
		}
		for kind, test := range map[string]struct {
			table, statement, taken string
			open                    func(t *testing.T, db *notify.DB) made
		}{
			"row":  {schema.RowMutexTable, "DELETE%", "TRUE", mutex("row")},
			"flag": {schema.FlagMutexTable, "UPDATE%", "held", mutex("flag")},
			"claim": {schema.ClaimTable, "DELETE%", "TRUE", func(t *testing.T, db *notify.DB) made {
				claims := guard.NewClaims(db)
				return made{
					take: func() error { return through(claims.Claim(t.Context(), "x")) },
					free: func(ctx context.Context) (bool, error) { return claims.Forget(ctx, "x") },
				}
			}},
			"once": {schema.OnceTable, "UPDATE%", "done_at IS NOT NULL", func(t *testing.T, db *notify.DB) made {
				once := readyOnce(db)
				return made{
					take: func() error { return through(once.Try(t.Context(), "x")) },
					free: func(ctx context.Context) (bool, error) { return once.Reset(ctx, "x") },
				}
			}},
		} {
			t.Run(kind, func(t *testing.T) {
				config := s.Database(t)
				direct := openDB(t, config)
				require.NoError(t, schema.Init(t.Context(), direct.Pool()))
				proxy := s.Proxy(t)
				next, cut := test.open(t, direct), test.open(t, openDB(t, proxy.Config(config)))
				require.NoError(t, next.take())
				freed := neverAnswered(t, direct, proxy, "SELECT * FROM "+test.table+" FOR UPDATE", test.statement,
					"SELECT COUNT(*) FROM "+test.table+" WHERE "+test.taken, 0, func() error {
						_, err := cut.free(t.Context())
						return err
					})
				require.NoError(t, next.take())
				proxy.Up()
				assert.Error(t, mysqltest.Receive(t, freed), "nobody knows")
				require.ErrorIs(t, next.take(), notify.ErrNotAcquired, "two have it")
			})
		}
	})
}

// answerLost runs act and cuts its connection after the server has done what act requested,
// and before the answer: block, run in a transaction, makes act's statement wait,
// until the proxy forwards nothing more.
func answerLost[T any](t *testing.T, direct *notify.DB, proxy *mysqltest.Proxy, block, statement, done string, want int, act func() T) T {
	t.Helper()
	acted := neverAnswered(t, direct, proxy, block, statement, done, want, act)
	proxy.Up()
	return mysqltest.Receive(t, acted)
}

// neverAnswered is answerLost with a network that stays down.
func neverAnswered[T any](t *testing.T, direct *notify.DB, proxy *mysqltest.Proxy, block, statement, done string, want int, act func() T) <-chan T {
	t.Helper()
	tx, err := direct.Pool().BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	defer func() { _ = tx.Rollback() }()
	_, err = tx.ExecContext(t.Context(), block)
	require.NoError(t, err)
	acted := mysqltest.Result(act)
	require.Eventually(t, func() bool { return waiting(t, direct, statement) > 0 }, patience, tick)
	proxy.Freeze()
	require.NoError(t, tx.Commit())
	require.Eventually(t, func() bool { return mysqltest.Value[int](t, direct.Pool(), done) == want }, patience, tick)
	proxy.Down()
	return acted
}
