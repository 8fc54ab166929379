package core_test

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// socket returns a configuration that uses the server's Unix socket, by a path that is
// short enough.
func socket(t *testing.T, s *mysqltest.Server, config *mysql.Config) *mysql.Config {
	t.Helper()
	var folder, name string
	require.NoError(t, s.Admin(t).QueryRow("SELECT @@datadir, @@socket").Scan(&folder, &name))
	if !filepath.IsAbs(name) {
		name = filepath.Join(folder, name)
	}
	short, err := os.MkdirTemp("", "mq") //nolint:usetesting // with the test's name in it the path is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(short)) })
	link := filepath.Join(short, "s")
	require.NoError(t, os.Symlink(name, link))
	through := config.Clone()
	through.Net, through.Addr = "unix", link
	return through
}

// unwatched returns a configuration that uses a network registered with the driver. Such connections can be neither
// read ahead nor cut.
func unwatched(config *mysql.Config) *mysql.Config {
	mysql.RegisterDialContext("mqtest", func(ctx context.Context, addr string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", addr)
	})
	through := config.Clone()
	through.Net = "mqtest"
	return through
}

// impatient is a connection, as a user's DialFunc may return it, whose reads end by a deadline.
type impatient struct{ net.Conn }

func (c impatient) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(short / 3)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func withShortTimeout(config *mysql.Config) *mysql.Config {
	through := config.Clone()
	through.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		var d net.Dialer
		conn, err := d.DialContext(ctx, network, addr)
		return impatient{conn}, err
	}
	return through
}

// A killed session is lost at once. No touch is due during the test, so
// the read ahead has noticed it, over every kind of connection.
func TestKilledSessionIsLostAtOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, certificate(t)...)
		config := own.Database(t)
		encrypted := config.Clone()
		encrypted.TLSConfig = "skip-verify"
		plain := mysql.NewConfig() // as users write it: the network is TCP if none is named
		plain.User, plain.Addr, plain.DBName = config.User, config.Addr, config.DBName
		for name, config := range map[string]*mysql.Config{
			"tcp": config, "no network named": plain, "tls": encrypted, "unix": socket(t, own, config),
		} {
			t.Run(name, func(t *testing.T) {
				db := openDB(t, config)
				if name == "tls" {
					var cipher, tls string
					require.NoError(t, db.Pool().QueryRow("SHOW STATUS LIKE 'Ssl_cipher'").Scan(&cipher, &tls))
					require.NotEmpty(t, tls)
				}
				for _, locks := range []int{0, 1} {
					session := openSession(t, db, never)
					var lock *core.Lock
					for range locks {
						lock = mustLock(t, session, lockName(db))
						require.NoError(t, lock.Err())
					}
					for i := range 6 { // the first part of each answer is read ahead
						awaitReadAhead(t, session)
						n := 1 << (3 * i)
						require.Equal(t, strings.Repeat("x", n), value[string](t, session, "SELECT REPEAT('x', ?)", n))
					}
					require.NoError(t, session.Err())
					kill(t, own.Admin(t), "CONNECTION", session.ID())
					mysqltest.Await(t, session.Lost(), "the loss")
					require.ErrorContains(t, session.Err(), "the server closed the connection")
					if lock != nil {
						mysqltest.Await(t, lock.Lost(), "the lock's loss")
						require.ErrorIs(t, lock.Err(), core.ErrLockLost)
					}
					require.Error(t, session.Do(t.Context(), func(*sqlx.Conn) error { panic("must not run") }))
				}
			})
		}
	})
}

// A touch notices the end of a connection that can't be read ahead. There is not even a socket to cut.
func TestKilledSessionIsLostByATouch(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, unwatched(s.Database(t)))
		session := openSession(t, db, short)
		lock := mustLock(t, session, lockName(db))
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				for range 50 {
					assert.NoError(t, session.Do(t.Context(), func(conn *sqlx.Conn) error { return conn.PingContext(t.Context()) }))
				}
			})
		}
		all.Wait()
		kill(t, s.Admin(t), "CONNECTION", session.ID())
		mysqltest.Await(t, lock.Lost(), "the loss")
		require.ErrorIs(t, lock.Err(), core.ErrLockLost)

		idle := openSession(t, db, never)
		mustLock(t, idle, lockName(db))
		closed := mysqltest.Result(idle.Close)
		require.NoError(t, mysqltest.Receive(t, closed))
	})
}

func TestLostWithTheServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		proxy := own.Proxy(t)
		for _, test := range []struct {
			name    string
			end, up func()
		}{
			{"network down", proxy.Down, proxy.Up},
			{"killed", own.Kill, func() { own.Restart(t) }},
			{"shut down", own.Stop, func() {}},
		} {
			t.Run(test.name, func(t *testing.T) {
				db := openDB(t, proxy.Config(own.Database(t)))
				session, empty := openSession(t, db, never), openSession(t, db, never)
				lock := mustLock(t, session, lockName(db))
				ctx, cancel := lock.Context(t.Context())
				defer cancel()
				test.end()
				mysqltest.Await(t, lock.Lost(), "the lock's loss")
				mysqltest.Await(t, session.Lost(), "the loss")
				mysqltest.Await(t, empty.Lost(), "the loss of a session without a lock")
				mysqltest.Await(t, ctx.Done(), "the context's end")
				require.ErrorIs(t, context.Cause(ctx), core.ErrLockLost)
				require.ErrorIs(t, lock.Release(t.Context()), core.ErrLockLost)
				_, err := lock.Pass(t.Context(), 0)
				require.ErrorIs(t, err, core.ErrLockLost)
				held, err := lock.Held(t.Context())
				require.NoError(t, err)
				assert.False(t, held)
			})
			test.up()
		}
	})
}

// If the network freezes, the server gives the lock to the next session after IdleTimeout without a sign of the
// first one, which by then knows that it has lost the lock. The cases are what the session does
// when the network freezes.
func TestLostBeforeTheServerGivesTheLockAway(t *testing.T) {
	// A longer pause would allow thousands of calls between two touches; this one leaves the processors to other tests.
	pause := func() { <-time.After(time.Millisecond) }
	cases := map[string]func(t *testing.T, session *core.Session, another string){
		"idle": nil,
		"statement after statement": func(_ *testing.T, session *core.Session, _ string) {
			for session.Err() == nil {
				_ = session.Do(context.Background(), func(conn *sqlx.Conn) error {
					_, err := conn.ExecContext(context.Background(), "DO 1")
					return err
				})
				pause()
			}
		},
		"nothing said": func(_ *testing.T, session *core.Session, _ string) {
			for session.Err() == nil {
				_ = session.Do(context.Background(), func(*sqlx.Conn) error { return nil })
				pause()
			}
		},
		"waits for another lock": func(t *testing.T, session *core.Session, another string) {
			_, err := session.Lock(context.Background(), another, time.Hour)
			assert.Error(t, err)
		},
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, busy := range cases {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				config := s.Database(t)
				proxy := s.Proxy(t)
				direct := openDB(t, config)
				another := openSession(t, direct, 0)
				mustLock(t, another, lockName(direct, "another"))
				idle := 2 * short // the first stops a sixth of it before the server does, which may be held up meanwhile
				first := openSession(t, openDB(t, proxy.Config(config)), idle)
				lock := mustLock(t, first, lockName(direct))
				second := openSession(t, direct, 0)
				taken := mysqltest.Result(func() error {
					_, err := second.Lock(context.Background(), lockName(direct), 2*patience)
					select {
					case <-lock.Lost():
					default:
						t.Error("two sessions hold the lock")
					}
					return err
				})
				mysqltest.AwaitState(t, s.Admin(t), second.ID(), waiting)
				var all sync.WaitGroup
				if busy != nil {
					all.Go(func() { busy(t, first, lockName(direct, "another")) })
					defer all.Wait()
				}
				if !testing.Short() {
					serverTime(t, s.Admin(t), idle+time.Second) // nothing is lost before
				}
				require.NoError(t, lock.Err())
				proxy.Freeze()
				mysqltest.Await(t, lock.Lost(), "the loss")
				require.ErrorIs(t, lock.Err(), core.ErrLockLost)
				require.NoError(t, mysqltest.Receive(t, taken))
			})
		}
	})
}

// An answer that comes late was true when it was sent: the server has given
// the lock to another session since.
func TestLateGrantIsRefused(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, how := range []string{"lock", "pass"} {
			t.Run(how, func(t *testing.T) {
				t.Parallel()
				config := s.Database(t)
				proxy := s.Proxy(t)
				direct := openDB(t, config)
				admin := s.Admin(t)
				first := openSession(t, openDB(t, proxy.Config(config)), short)
				holder, next := openSession(t, direct, 0), openSession(t, direct, 0)
				var held *core.Lock
				var err <-chan error
				if how == "lock" {
					held = mustLock(t, holder, lockName(direct))
					err = mysqltest.Result(func() error {
						_, err := first.Lock(t.Context(), lockName(direct), time.Minute)
						return err
					})
				} else {
					lock := mustLock(t, first, lockName(direct))
					queued := mysqltest.Result(func() *core.Lock { return mustLock(t, holder, lockName(direct)) })
					mysqltest.AwaitState(t, admin, holder.ID(), waiting)
					err = mysqltest.Result(func() error {
						_, err := lock.Pass(t.Context(), time.Minute)
						return err
					})
					held = mysqltest.Receive(t, queued)
				}
				mysqltest.AwaitState(t, admin, first.ID(), waiting)
				proxy.Freeze()
				require.NoError(t, held.Release(t.Context())) // to the first, which can't hear of it
				taken := mustLock(t, next, lockName(direct))  // so that it goes to the next
				proxy.Thaw()
				require.Error(t, mysqltest.Receive(t, err))
				requireHeld(t, taken, true)
			})
		}
	})
}

// A session with locks that is too busy to ask the server for them is lost, in time.
func TestStatementTakesTooLong(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		mustLock(t, openSession(t, db, 0), lockName(db, "held"))
		session := openSession(t, db, short)
		wait := func(conn *sqlx.Conn) error {
			var granted int
			return conn.QueryRowxContext(t.Context(), "SELECT GET_LOCK(?, ?)", lockName(db, "held"), mysqltest.Size(12, 15, 15)).Scan(&granted)
		}
		if !testing.Short() {
			require.NoError(t, session.Do(t.Context(), wait), "without a lock it may take as long as it likes")
		}
		require.NoError(t, session.Err())
		lock := mustLock(t, session, lockName(db))
		require.Error(t, session.Do(t.Context(), wait))
		require.ErrorIs(t, lock.Err(), core.ErrLockLost)
		require.ErrorContains(t, session.Err(), "kept the session from asking for its locks")
		mustLock(t, openSession(t, db, 0), lockName(db))
	})
}

// After twice the wait_timeout the session and its locks still live.
func TestIdleSessionLives(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		for name, config := range map[string]*mysql.Config{"watched": config, "unwatched": unwatched(config), "reads time out": withShortTimeout(config)} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db := openDB(t, config)
				holder, empty := openSession(t, db, short), openSession(t, db, short)
				lock := mustLock(t, holder, lockName(db, name))
				serverTime(t, s.Admin(t), mysqltest.Size(short, 2*short, 2*short)+time.Second)
				require.NoError(t, holder.Err())
				require.NoError(t, empty.Err())
				requireHeld(t, lock, true)
				require.NoError(t, lock.Release(t.Context()))
			})
		}
	})
}

// If the server no longer gives the session the lock, the lock is lost although the
// connection works: a touch notices it, however busy the session is, or Held.
func TestLossByOwnership(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		session := openSession(t, db, short)
		take := func() *core.Lock { // and let go behind the session's back
			lock := mustLock(t, session, lockName(db))
			require.Equal(t, 1, value[int](t, session, "SELECT RELEASE_LOCK(?)", lock.Name()))
			return lock
		}

		lock := take()
		require.Eventually(t, func() bool {
			require.Equal(t, 1, value[int](t, session, "SELECT 1"))
			return lock.Err() != nil
		}, patience, tick)
		require.ErrorIs(t, lock.Err(), core.ErrLockLost)
		require.NoError(t, session.Err(), "the session lives")

		lock = take()
		requireHeld(t, lock, false)
		require.ErrorIs(t, lock.Err(), core.ErrLockLost)
		requireHeld(t, lock, false)

		require.ErrorIs(t, take().Release(t.Context()), core.ErrLockLost)

		lock = mustLock(t, session, lockName(db))
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, lock.Release(t.Context()), "released before")
		require.NoError(t, lock.Err(), "a release is no loss")
		requireHeld(t, lock, false)
		require.NoError(t, lock.Err())
		require.NoError(t, session.Err())

		_, err := take().Pass(t.Context(), 0)
		require.ErrorIs(t, err, core.ErrLockLost)
		require.Error(t, session.Err(), "somebody may have had it: all is in doubt")
	})
}
