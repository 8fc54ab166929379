package core_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The session's settings are its own, whatever the DSN asks for.
func TestSessionSettings(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.Params = map[string]string{
			"autocommit": "0", "wait_timeout": "9999", "time_zone": "'+05:00'", "lock_wait_timeout": "77",
			"innodb_lock_wait_timeout": "77", "long_query_time": "1",
		}
		want := map[string]string{
			"autocommit": "1", "wait_timeout": "7", "time_zone": "+00:00", "lock_wait_timeout": "2",
			"innodb_lock_wait_timeout": "2", "long_query_time": "3600",
		}
		if s.IsMariaDB() {
			config.Params["max_statement_time"], want["max_statement_time"] = "1", "0"
			config.Params["tx_isolation"], want["tx_isolation"] = "'SERIALIZABLE'", "READ-COMMITTED"
			config.Params["idle_transaction_timeout"], want["idle_transaction_timeout"] = "5", "0"
		} else {
			config.Params["max_execution_time"], want["max_execution_time"] = "1000", "0"
			config.Params["transaction_isolation"], want["transaction_isolation"] = "'SERIALIZABLE'", "READ-COMMITTED"
		}
		config.ReadTimeout = 300 * time.Millisecond // would cut each wait
		config.ParseTime, config.Loc = true, time.FixedZone("x", 7)
		session := openSession(t, openDB(t, config), 7*time.Second)
		for name, want := range want {
			assert.Equal(t, want, value[string](t, session, "SELECT @@SESSION."+name), name)
		}
		assert.Equal(t, session.ID(), value[uint64](t, session, "SELECT CONNECTION_ID()"))
		assert.Equal(t, config.DBName, value[string](t, session, "SELECT DATABASE()"))
		assert.Equal(t, s.IsMariaDB(), session.Capabilities().MariaDB)
		assert.Equal(t, 0, value[int](t, session, "SELECT SLEEP(1)"))
		if !s.IsMariaDB() { // where performance_schema is off
			assert.Equal(t, "mqnotify", value[string](t, session, `SELECT ATTR_VALUE FROM performance_schema.session_account_connect_attrs
				WHERE PROCESSLIST_ID = CONNECTION_ID() AND ATTR_NAME = 'program_name'`))
		}
	})
}

func TestSessionRefusals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config)
		_, err := core.NewSession(t.Context(), db, core.SessionOptions{IdleTimeout: 2 * time.Second})
		require.ErrorContains(t, err, "3s or more")

		ctx, cancel := context.WithCancelCause(t.Context())
		cancel(errOurs)
		_, err = core.NewSession(ctx, db, core.SessionOptions{})
		require.ErrorIs(t, err, context.Canceled)

		wrong := config.Clone()
		wrong.User, wrong.Passwd = "nobody", "geheim"
		_, err = core.NewSession(t.Context(), openDB(t, wrong), core.SessionOptions{})
		require.ErrorContains(t, err, "notify: connect: ")
		assert.NotContains(t, err.Error(), "geheim")

		gone := config.Clone()
		gone.DBName += "_gone"
		_, err = core.NewSession(t.Context(), openDB(t, gone), core.SessionOptions{})
		var failure *mysql.MySQLError
		require.ErrorAs(t, err, &failure)
		assert.EqualValues(t, 1049, failure.Number)

		// The account may connect, but the session can't be set up.
		bad := config.Clone()
		bad.Params = map[string]string{"no_such_variable": "1"}
		_, err = core.NewSession(t.Context(), openDB(t, bad), core.SessionOptions{})
		require.ErrorContains(t, err, "no_such_variable")
	})
}

var errOurs = errors.New("the test's own cause")

// A server that accepts a connection and sends nothing must not block a caller whose context ends.
func TestSessionToAServerThatHangs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		proxy := s.Proxy(t)
		db := openDB(t, proxy.Config(s.Database(t)))
		proxy.Freeze()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := core.NewSession(ctx, db, core.SessionOptions{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

func TestDo(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))

		t.Run("from many goroutines", func(t *testing.T) {
			session := openSession(t, db, 0)
			mustLock(t, session, lockName(db)) // which is looked after too
			var all sync.WaitGroup
			for i := range 16 {
				all.Go(func() {
					for j := range 50 {
						var got int
						assert.NoError(t, session.Do(t.Context(), func(conn *sqlx.Conn) error {
							return conn.QueryRowxContext(t.Context(), "SELECT ? + ?", i*1000, j).Scan(&got)
						}))
						assert.Equal(t, i*1000+j, got)
					}
				})
			}
			all.Wait()
			assert.NoError(t, session.Err())
		})

		t.Run("an error of a statement or of the caller's costs nothing", func(t *testing.T) {
			session := openSession(t, db, 0)
			err := session.Do(t.Context(), func(conn *sqlx.Conn) error {
				_, err := conn.ExecContext(t.Context(), "SELEKT 1")
				return err
			})
			var failure *mysql.MySQLError
			require.ErrorAs(t, err, &failure)
			require.ErrorIs(t, session.Do(t.Context(), func(*sqlx.Conn) error { return errOurs }), errOurs)
			assert.Panics(t, func() { _ = session.Do(t.Context(), func(*sqlx.Conn) error { panic("in the middle") }) })
			assert.Equal(t, 1, value[int](t, session, "SELECT 1"))
		})

		t.Run("a context that ended before costs nothing", func(t *testing.T) {
			session := openSession(t, db, 0)
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(errOurs)
			for range 20 { // a select that chose at random would run f sooner or later
				require.ErrorIs(t, session.Do(ctx, func(*sqlx.Conn) error { panic("must not run") }), errOurs)
			}
			assert.Equal(t, 1, value[int](t, session, "SELECT 1"))
		})

		t.Run("a context that ends while another statement runs costs nothing", func(t *testing.T) {
			session := openSession(t, db, 0)
			inside, leave := make(chan struct{}), make(chan struct{})
			first := mysqltest.Result(func() error {
				return session.Do(t.Context(), func(*sqlx.Conn) error {
					close(inside)
					<-leave
					return nil
				})
			})
			mysqltest.Await(t, inside, "the first statement")
			ctx, cancel := context.WithCancelCause(t.Context())
			second := mysqltest.Result(func() error { return session.Do(ctx, func(*sqlx.Conn) error { return nil }) })
			cancel(errOurs)
			require.ErrorIs(t, mysqltest.Receive(t, second), errOurs)
			close(leave)
			require.NoError(t, mysqltest.Receive(t, first))
			assert.Equal(t, 1, value[int](t, session, "SELECT 1"))
		})

		t.Run("a context that ends during the statement costs the session", func(t *testing.T) {
			session := openSession(t, db, 0)
			lock := mustLock(t, session, lockName(db, "own"))
			mustLock(t, openSession(t, db, 0), lockName(db, "held"))
			ctx, cancel := context.WithCancelCause(t.Context())
			err := mysqltest.Result(func() error {
				return session.Do(ctx, func(conn *sqlx.Conn) error {
					_, err := conn.ExecContext(ctx, "DO GET_LOCK(?, 3600)", lockName(db, "held"))
					return err
				})
			})
			mysqltest.AwaitState(t, s.Admin(t), session.ID(), waiting)
			cancel(errOurs)
			require.ErrorIs(t, mysqltest.Receive(t, err), errOurs)
			mysqltest.Await(t, session.Lost(), "the loss")
			require.ErrorIs(t, session.Err(), errOurs)
			require.ErrorIs(t, lock.Err(), core.ErrLockLost)
			require.ErrorIs(t, lock.Err(), errOurs)
			require.ErrorIs(t, session.Do(t.Context(), func(*sqlx.Conn) error { panic("must not run") }), errOurs)
		})
	})
}

func TestClose(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		admin := s.Admin(t)
		other := openSession(t, db, 0)

		t.Run("twice", func(t *testing.T) {
			session := openSession(t, db, 0)
			lock := mustLock(t, session, lockName(db))
			require.NoError(t, session.Close())
			require.NoError(t, session.Close())
			mysqltest.Await(t, session.Lost(), "the loss")
			require.ErrorIs(t, session.Err(), core.ErrSessionClosed)
			require.ErrorIs(t, lock.Err(), core.ErrLockLost)
			require.ErrorIs(t, lock.Err(), core.ErrSessionClosed)
			require.ErrorIs(t, lock.Release(t.Context()), core.ErrLockLost)
			require.ErrorIs(t, session.Do(t.Context(), func(*sqlx.Conn) error { panic("must not run") }), core.ErrSessionClosed)
			_, err := session.TryLock(t.Context(), lockName(db))
			require.ErrorIs(t, err, core.ErrSessionClosed)
			require.NoError(t, mustLock(t, other, lockName(db)).Release(t.Context()))
		})

		t.Run("while a lock is waited for", func(t *testing.T) {
			mustLock(t, openSession(t, db, 0), lockName(db, "held"))
			session := openSession(t, db, 0)
			err := mysqltest.Result(func() error {
				_, err := session.Lock(t.Context(), lockName(db, "held"), time.Hour)
				return err
			})
			mysqltest.AwaitState(t, admin, session.ID(), waiting)
			require.NoError(t, mysqltest.Receive(t, mysqltest.Result(session.Close)))
			require.Error(t, mysqltest.Receive(t, err))
			require.ErrorIs(t, session.Err(), core.ErrSessionClosed)
		})

		// Both calls return only when everything has ended.
		t.Run("while a statement runs, many at once", func(t *testing.T) {
			mustLock(t, openSession(t, db, 0), lockName(db, "held"))
			session := openSession(t, db, 0)
			var running atomic.Bool
			err := mysqltest.Result(func() error {
				return session.Do(t.Context(), func(conn *sqlx.Conn) error {
					running.Store(true)
					defer running.Store(false)
					_, err := conn.ExecContext(t.Context(), "DO GET_LOCK(?, 3600)", lockName(db, "held"))
					return err
				})
			})
			mysqltest.AwaitState(t, admin, session.ID(), waiting)
			var all sync.WaitGroup
			for range 4 {
				all.Go(func() {
					assert.NoError(t, session.Close())
					assert.False(t, running.Load())
				})
			}
			all.Wait()
			require.Error(t, mysqltest.Receive(t, err))
		})

		t.Run("on its way", func(t *testing.T) { // whatever it meets, it leaves nothing
			for range 20 {
				session := openSession(t, db, short)
				var all sync.WaitGroup
				all.Go(func() {
					if lock, err := session.Lock(t.Context(), lockName(db, "way"), patience); err == nil {
						_, _ = lock.Pass(t.Context(), patience)
					}
				})
				all.Go(func() { assert.NoError(t, session.Close()) })
				all.Wait()
			}
			require.NoError(t, mustLock(t, other, lockName(db, "way")).Release(t.Context()))
		})
	})
}

// For a session that is cut off, the server would log a warning.
func TestCloseTellsTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("counts on a server of its own; TestClose has what it does")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := openDB(t, own.Database(t))
		admin := own.Admin(t)
		aborted := func() (name string, n int) {
			require.NoError(t, admin.QueryRow("SHOW GLOBAL STATUS LIKE 'Aborted_clients'").Scan(&name, &n))
			return name, n
		}
		_, before := aborted()
		for range 5 {
			session := openSession(t, db, 0)
			mustLock(t, session, lockName(db))
			require.NoError(t, session.Close())
		}
		require.Eventually(t, func() bool {
			return mysqltest.Value[int](t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ?", db.Name()) == 0
		}, patience, tick)
		_, after := aborted()
		assert.Less(t, after, before+5, "one that does not answer for 100 ms is cut off")
	})
}

func TestSessionsOfManyDatabases(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		// Locks of the same purpose in two databases do not conflict.
		one, two := openDB(t, s.Database(t)), openDB(t, s.Database(t))
		require.NotEqual(t, core.HandshakeName(one.Name(), "orders"), core.HandshakeName(two.Name(), "orders"))
		mustLock(t, openSession(t, one, 0), core.HandshakeName(one.Name(), "orders"))
		mustLock(t, openSession(t, two, 0), core.HandshakeName(two.Name(), "orders"))
		assert.Contains(t, core.HandshakeName(one.Name(), "orders"), one.Name(), "a DBA sees whose it is")
	})
}

// Ask on a session that is not shared ends at its limit, and the session is lost.
func TestAskEndsAtItsLimit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, proxy := s.Database(t), s.Proxy(t)
		db, err := core.OpenConfig(proxy.Config(config))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		session, err := core.NewSession(t.Context(), db, core.SessionOptions{IdleTimeout: time.Hour, Limit: 2 * time.Second})
		require.NoError(t, err)
		defer func() { _ = session.Close() }()
		proxy.Freeze()
		ended := mysqltest.Result(func() error {
			return session.Ask(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
				_, err := conn.ExecContext(ctx, "DO 1")
				return err
			})
		})
		require.Error(t, mysqltest.Receive(t, ended))
		require.Error(t, session.Err())
	})
}
