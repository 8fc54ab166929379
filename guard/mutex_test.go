package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// mutexes are the kinds of guard.Mutex.
var mutexes = map[string]func(db *notify.DB, name string) (*guard.Mutex, error){
	"advisory": with(guard.MutexOptions{}),
	"row":      with(guard.MutexOptions{Kind: "row"}),
	"flag":     with(guard.MutexOptions{Kind: "flag"}),
	"lease":    leaseFor(20 * time.Second),
}

func leaseFor(ttl time.Duration) func(db *notify.DB, name string) (*guard.Mutex, error) {
	return with(guard.MutexOptions{Kind: "lease", TTL: ttl})
}

func with(options guard.MutexOptions) func(db *notify.DB, name string) (*guard.Mutex, error) {
	return func(db *notify.DB, name string) (*guard.Mutex, error) { return guard.NewMutex(db, name, options) }
}

// eachMutex runs f for each kind, with connections that count changed rows
// and with connections that count found rows.
func eachMutex(t *testing.T, f func(t *testing.T, db *notify.DB, open func(name string) *guard.Mutex)) {
	t.Helper()
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			for kind, open := range mutexes {
				t.Run(kind, func(t *testing.T) {
					f(t, db, func(name string) *guard.Mutex {
						m, err := open(db, name)
						require.NoError(t, err)
						return m
					})
				})
			}
		})
	})
}

// These properties are common to all mutexes.
func TestMutex(t *testing.T) {
	eachMutex(t, func(t *testing.T, _ *notify.DB, open func(name string) *guard.Mutex) {
		held, err := open("A name: ☃").TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, held.Err())

		// Neither a second holder nor its holder can take it again; another name is another lock.
		_, err = open("A name: ☃").TryLock(t.Context())
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		require.ErrorContains(t, err, "A name")
		other, err := open("a name: ☃").TryLock(t.Context())
		require.NoError(t, err)
		require.NoError(t, other.Release(t.Context()))

		// A wait ends with its context, and with its cause. On a busy machine a short context may end before the
		// server has refused the lock.
		enough := errors.New("enough")
		ctx := t.Context()
		err = nil
		for wait := 50 * time.Millisecond; !errors.Is(err, notify.ErrNotAcquired); wait *= 2 {
			require.Less(t, wait, patience, "%v", err)
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeoutCause(t.Context(), wait, enough) //nolint:fatcontext // it is made of the test's, not of the one before
			defer cancel()
			_, err = open("A name: ☃").Lock(ctx)
			require.ErrorIs(t, err, enough)
		}
		_, err = open("free").Lock(ctx)
		require.ErrorIs(t, err, enough, "a context that had ended before")
		require.NotErrorIs(t, err, notify.ErrNotAcquired)
		_, err = open("free").TryLock(ctx)
		require.ErrorIs(t, err, enough)

		// A waiter gets it after the release, even after a release with a context that has ended.
		waits := mysqltest.Result(func() guard.Held { return mustLock(t, open("A name: ☃")) })
		working, stop := held.Context(t.Context())
		defer stop()
		require.NoError(t, held.Release(ctx))
		require.NoError(t, held.Release(ctx), "twice")
		next := mysqltest.Receive(t, waits)
		require.NotNil(t, next)
		require.NoError(t, held.Err())
		require.NoError(t, working.Err(), "a release is no loss")
		if held.Token() != 0 {
			require.Greater(t, next.Token(), held.Token())
		}
		require.NoError(t, next.Release(t.Context()))
	})
}

// A mutex has one holder at a time: two would make the count wrong.
func TestMutexExcludes(t *testing.T) {
	eachMutex(t, func(t *testing.T, db *notify.DB, open func(name string) *guard.Mutex) {
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE IF NOT EXISTS counter (kind VARCHAR(20) PRIMARY KEY, n INT NOT NULL, token BIGINT UNSIGNED NOT NULL)")
		kind := t.Name()[strings.LastIndexByte(t.Name(), '/')+1:]
		mysqltest.Exec(t, db.Pool(), "INSERT INTO counter VALUES (?, 0, 0)", kind)
		workers, rounds := 6, mysqltest.Many(3, 8, 8)
		var all sync.WaitGroup
		for range workers {
			all.Go(func() {
				for range rounds {
					err := guard.With(shortly(t, patience), open("counter"), func(ctx context.Context) error {
						var n int
						if err := db.Pool().GetContext(ctx, &n, "SELECT n FROM counter WHERE kind = ?", kind); err != nil {
							return err
						}
						_, err := db.Pool().ExecContext(ctx, "UPDATE counter SET n = ? WHERE kind = ?", n+1, kind)
						return err
					})
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		require.Equal(t, workers*rounds, mysqltest.Value[int](t, db.Pool(), "SELECT n FROM counter WHERE kind = ?", kind))
	})
}

// With returns what f returns, and the lock is free after a panic.
func TestWith(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		lease := newLease(t, db, "x", time.Minute)
		no := errors.New("no")
		require.ErrorIs(t, guard.With(t.Context(), lease, func(context.Context) error { return no }), no)
		require.Panics(t, func() {
			_ = guard.With(t.Context(), lease, func(context.Context) error { panic("no") })
		})
		ran := false
		require.NoError(t, guard.With(t.Context(), lease, func(context.Context) error { ran = true; return nil }))
		require.True(t, ran)

		// A lock that was lost while f ran is an error, whatever f returns.
		row, err := guard.NewMutex(db, "x", guard.MutexOptions{Kind: "row"})
		require.NoError(t, err)
		err = guard.With(t.Context(), row, func(ctx context.Context) error {
			_, err := row.Break(ctx)
			return err
		})
		require.ErrorIs(t, err, notify.ErrLockLost)
	})
}

// The methods for leases only, and for kinds that do not expire, are refused by the other kinds.
func TestMutexKinds(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		for kind, open := range mutexes {
			m, err := open(db, "x")
			require.NoError(t, err)
			for what, f := range map[string]func() error{
				"take": func() error { _, err := m.Take(t.Context()); return err }, "resume": func() error { _, err := m.Resume(t.Context(), 1); return err },
				"release": func() error { return m.Release(t.Context(), 1) }, "fence": func() error { return inTx(t, db, func(tx notify.Tx) error { return m.Fence(t.Context(), tx, 1) }) },
			} {
				if kind != "lease" {
					require.ErrorIs(t, f(), notify.ErrOptions, "%s %s", what, kind)
				} else {
					require.NotErrorIs(t, f(), notify.ErrOptions, what)
				}
			}
			_, err = m.Break(t.Context())
			require.Equal(t, kind == "advisory" || kind == "lease", errors.Is(err, notify.ErrOptions), kind)
		}
	})
}

// A kind that does not expire stays taken when its holder is gone, until Break.
func TestBreak(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			row, err := guard.NewMutex(db, "x", guard.MutexOptions{Kind: "row"})
			require.NoError(t, err)
			flag, err := guard.NewMutex(db, "x", guard.MutexOptions{Kind: "flag"})
			require.NoError(t, err)
			for _, m := range []*guard.Mutex{row, flag} {
				broke, err := m.Break(t.Context())
				require.NoError(t, err)
				require.False(t, broke)
				held := mustLock(t, m)
				gone := lost(t, held)
				broke, err = m.Break(t.Context())
				require.NoError(t, err)
				require.True(t, broke)
				next := mustLock(t, m)
				require.ErrorIs(t, held.Release(t.Context()), notify.ErrLockLost)
				mysqltest.Await(t, gone, "the loss")
				require.ErrorIs(t, held.Release(t.Context()), notify.ErrLockLost)
				_, err = m.TryLock(t.Context())
				require.ErrorIs(t, err, notify.ErrNotAcquired, "it released what it did not hold")
				require.NoError(t, next.Release(t.Context()))
			}
		})
	})
}

// A release that failed without an answer may have released the lock; the next release does
// not count that as a loss. A release that finds another holder does.
func TestReleaseAgain(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for kind, test := range map[string]struct{ table, release, free string }{
			"row":  {schema.RowMutexTable, "DELETE%", "TRUE"},
			"flag": {schema.FlagMutexTable, "UPDATE%", "held"},
		} {
			t.Run(kind, func(t *testing.T) {
				config := s.Database(t)
				direct := openDB(t, config)
				require.NoError(t, schema.Init(t.Context(), direct.Pool()))
				proxy := s.Proxy(t)
				m, err := mutexes[kind](openDB(t, proxy.Config(config)), "x")
				require.NoError(t, err)
				held := mustLock(t, m)
				released := neverAnswered(t, direct, proxy, "SELECT * FROM "+test.table+" FOR UPDATE", test.release,
					"SELECT COUNT(*) FROM "+test.table+" WHERE "+test.free, 0, func() error { return held.Release(t.Context()) })
				require.Error(t, mysqltest.Receive(t, released), "nobody knows")
				require.NoError(t, held.Err())
				proxy.Up()
				require.NoError(t, held.Release(t.Context()), "the lock that it had released itself")
				require.NoError(t, held.Err())

				held = mustLock(t, m)
				proxy.Down()
				require.Error(t, held.Release(t.Context()))
				proxy.Up()
				require.NoError(t, held.Release(t.Context()), "the lock that it had not")
				require.NoError(t, mustLock(t, m).Release(t.Context()))
			})
		}
	})
}

// An advisory lock whose connection ends is lost at once, with a cause, and another holder gets it.
func TestAdvisoryLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		direct := openDB(t, config)
		for name, end := range map[string]func(p *mysqltest.Proxy, lock string){
			"killed": func(_ *mysqltest.Proxy, lock string) {
				mysqltest.Exec(t, direct.Pool(), fmt.Sprintf("KILL %d", mysqltest.Value[int](t, direct.Pool(), "SELECT IS_USED_LOCK(?)", lock)))
			},
			"cut": func(p *mysqltest.Proxy, _ string) { p.Down() },
		} {
			proxy := s.Proxy(t)
			m, err := guard.NewMutex(openDB(t, proxy.Config(config)), name, guard.MutexOptions{})
			require.NoError(t, err)
			other, err := guard.NewMutex(direct, name, guard.MutexOptions{})
			require.NoError(t, err)
			held := mustLock(t, m)
			working, cancel := held.Context(t.Context())
			waits := mysqltest.Result(func() guard.Held { return mustLock(t, other) })
			end(proxy, core.LockName("mutex", config.DBName, name))
			mysqltest.Await(t, working.Done(), "the loss")
			require.ErrorIs(t, context.Cause(working), notify.ErrLockLost)
			require.ErrorIs(t, held.Release(t.Context()), notify.ErrLockLost)
			cancel()
			next := mysqltest.Receive(t, waits)
			require.NotNil(t, next)
			require.NoError(t, next.Release(t.Context()))
		}
	})
}

// An advisory lock is refused where it does not exclude: behind a proxy that distributes
// statements to several sessions, and on a server whose writers are elsewhere.
func TestAdvisoryUnsafe(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--read-only=1")
		shared := s.Database(t)
		for name, config := range map[string]*mysql.Config{"read-only": own.Database(t), "proxy": s.Multiplexer(t, 4).Config(shared)} {
			m, err := guard.NewMutex(openDB(t, config), "x", guard.MutexOptions{})
			require.NoError(t, err)
			_, err = m.TryLock(t.Context())
			require.ErrorIs(t, err, guard.ErrUnsafe, name)
		}
	})
}

// On a server that stores names in lower case a mutex is one, however a DSN spells the database.
func TestMutexOfAFoldedName(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if !s.IsMariaDB() {
			t.Skip("MySQL takes lower_case_table_names only when its data folder is made")
		}
		db, config := openState(t, s.Start(t, "--lower-case-table-names=1"))
		upper := config.Clone()
		upper.DBName = strings.ToUpper(config.DBName)
		one, err := guard.NewMutex(db, "x", guard.MutexOptions{})
		require.NoError(t, err)
		other, err := guard.NewMutex(openDB(t, upper), "x", guard.MutexOptions{})
		require.NoError(t, err)
		held := mustLock(t, one)
		_, err = other.TryLock(t.Context())
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		require.NoError(t, held.Release(t.Context()))
	})
}
