package notify_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

func TestLock(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		one, two := openSession(t, db, 0), openSession(t, db, 0)
		name := lockName(db)

		lock, err := one.TryLock(t.Context(), name)
		require.NoError(t, err)
		assert.Equal(t, name, lock.Name())
		requireHeld(t, lock, true)
		_, err = one.TryLock(t.Context(), name)
		require.ErrorContains(t, err, "holds it already")

		_, err = two.TryLock(t.Context(), name)
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		_, err = two.Lock(t.Context(), name, -time.Hour)
		require.ErrorIs(t, err, notify.ErrNotAcquired, "less than nothing is a try")
		begun := time.Now()
		_, err = two.Lock(t.Context(), name, 1100*time.Millisecond)
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		assert.GreaterOrEqual(t, time.Since(begun), 1900*time.Millisecond, "rounded up, by the server's clock")

		// Waits as long as it is told to, however long that is.
		granted := result(func() error {
			lock, err := two.Lock(t.Context(), name, math.MaxInt64)
			if err != nil {
				return err
			}
			return lock.Release(t.Context())
		})
		awaitState(t, s.Admin(t), two.ID(), waiting)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, receive(t, granted))
		require.NoError(t, mustLock(t, one, name).Release(t.Context()))
		require.NoError(t, one.Err())
		require.NoError(t, two.Err())
	})
}

func TestLockNamesThatServersTakeDifferently(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		session := openSession(t, openDB(t, s.Database(t)), 0)
		for _, name := range []string{"", strings.Repeat("x", 65), "Orders", "two words", "größe", "a\x00", "\x7f"} {
			_, err := session.TryLock(t.Context(), name)
			require.ErrorIs(t, err, notify.ErrLockName, "%q", name)
		}
		require.NoError(t, session.Err())
	})
}

// One goroutine after the other has the lock, on one session and on many.
func TestLockExcludes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		inside, turns := 0, 0 // the race detector sees two who are inside
		var all sync.WaitGroup
		for range 6 {
			session := openSession(t, db, 0)
			all.Go(func() {
				for range 20 {
					lock, err := session.Lock(t.Context(), lockName(db), patience)
					if !assert.NoError(t, err) {
						return
					}
					inside++
					assert.Equal(t, 1, inside)
					turns++
					inside--
					assert.NoError(t, lock.Release(t.Context()))
				}
			})
		}
		all.Wait()
		assert.Equal(t, 120, turns)
	})
}

func TestLockContext(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		type key struct{}
		parent, end := context.WithCancelCause(context.WithValue(t.Context(), key{}, "value"))

		session := openSession(t, db, never)
		lock := mustLock(t, session, lockName(db))
		lost, cancelLost := lock.Context(parent)
		defer cancelLost()
		cancelled, cancel := lock.Context(parent)
		cancel()
		cancel()
		require.ErrorIs(t, context.Cause(cancelled), context.Canceled)
		assert.Equal(t, "value", lost.Value(key{}))
		require.NoError(t, lost.Err())
		kill(t, s.Admin(t), "CONNECTION", session.ID())
		await(t, lost.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(lost), notify.ErrLockLost)
		require.ErrorContains(t, context.Cause(lost), lock.Name())

		session = openSession(t, db, never)
		lock = mustLock(t, session, lockName(db))
		closed, cancelClosed := lock.Context(parent)
		defer cancelClosed()
		require.NoError(t, session.Close())
		await(t, closed.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(closed), notify.ErrLockLost)
		require.ErrorIs(t, context.Cause(closed), notify.ErrSessionClosed)
		late, cancelLate := lock.Context(parent) // after the loss
		defer cancelLate()
		await(t, late.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(late), notify.ErrSessionClosed)

		lock = mustLock(t, openSession(t, db, never), lockName(db))
		ended, cancelEnded := lock.Context(parent)
		defer cancelEnded()
		end(errOurs)
		await(t, ended.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(ended), errOurs)
		require.NoError(t, lock.Err())
	})
}

// A wait for a lock takes longer than the session may be idle: the session lives,
// and holds what it got.
func TestAWaitLongerThanIdleTimeout(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *mysqltest.Server) {
		const long = short + time.Second
		for what, wait := range map[string]func(session, other *notify.Session, name string) (*notify.Lock, error){
			"granted": func(session, other *notify.Session, name string) (*notify.Lock, error) {
				held := mustLock(t, other, name)
				granted := result(func() *notify.Lock { return mustLock(t, session, name) })
				serverTime(t, s.Admin(t), long)
				require.NoError(t, held.Release(t.Context()))
				return receive(t, granted), nil
			},
			"turn": func(session, other *notify.Session, name string) (*notify.Lock, error) {
				lock := mustLock(t, session, name)
				queued := result(func() *notify.Lock { return mustLock(t, other, name) })
				awaitState(t, s.Admin(t), other.ID(), waiting)
				turned := result(func() error {
					_, err := lock.Turn(t.Context(), patience)
					return err
				})
				held := receive(t, queued)
				serverTime(t, s.Admin(t), long)
				require.NoError(t, held.Release(t.Context()))
				return lock, receive(t, turned)
			},
			"not granted": func(session, other *notify.Session, name string) (*notify.Lock, error) {
				mustLock(t, other, name)
				_, err := session.Lock(t.Context(), name, long)
				require.ErrorIs(t, err, notify.ErrNotAcquired)
				return mustLock(t, session, name+".free"), nil
			},
			"with another lock": func(session, other *notify.Session, name string) (*notify.Lock, error) {
				lock := mustLock(t, session, name+".another")
				mustLock(t, other, name)
				begun := time.Now()
				_, err := session.Lock(t.Context(), name, long)
				require.ErrorIs(t, err, notify.ErrNotAcquired)
				require.GreaterOrEqual(t, time.Since(begun), long-100*time.Millisecond)
				return lock, nil
			},
			"turn with another lock": func(session, other *notify.Session, name string) (*notify.Lock, error) {
				another := mustLock(t, session, name+".another")
				lock := mustLock(t, session, name)
				queued := result(func() *notify.Lock { return mustLock(t, other, name) })
				awaitState(t, s.Admin(t), other.ID(), waiting)
				turned := result(func() (err error) {
					taken, err := lock.Turn(t.Context(), patience)
					assert.True(t, taken)
					return err
				})
				held := receive(t, queued)
				serverTime(t, s.Admin(t), long)
				require.NoError(t, held.Release(t.Context()))
				require.NoError(t, receive(t, turned))
				requireHeld(t, another, true)
				return lock, nil
			},
		} {
			t.Run(what, func(t *testing.T) {
				t.Parallel()
				db := openDB(t, s.Database(t))
				session := openSession(t, db, short)
				lock, err := wait(session, openSession(t, db, 0), lockName(db))
				require.NoError(t, err)
				serverTime(t, s.Admin(t), short) // several touches later
				require.NoError(t, lock.Err())
				require.NoError(t, session.Err())
				requireHeld(t, lock, true)
			})
		}
	})
}

// Who waits for the lock has it during the turn, in the order in which they came.
func TestTurn(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		admin := s.Admin(t)
		name := lockName(db)
		first := openSession(t, db, 0)
		lock := mustLock(t, first, name)

		taken, err := lock.Turn(t.Context(), 0)
		require.NoError(t, err)
		assert.False(t, taken, "nobody waited")
		requireHeld(t, lock, true)

		var order []string // those who hold the lock write to it
		var all sync.WaitGroup
		for _, who := range []string{"second", "third", "fourth"} {
			session := openSession(t, db, 0)
			all.Go(func() {
				lock := mustLock(t, session, name)
				order = append(order, who)
				assert.NoError(t, lock.Release(t.Context()))
			})
			awaitState(t, admin, session.ID(), waiting)
		}
		taken, err = lock.Turn(t.Context(), patience)
		require.NoError(t, err)
		assert.True(t, taken)
		order = append(order, "first")
		all.Wait()
		assert.Equal(t, []string{"second", "third", "fourth", "first"}, order)
		requireHeld(t, lock, true)

		// Whoever came meanwhile keeps it.
		other := openSession(t, db, 0)
		queued := result(func() *notify.Lock { return mustLock(t, other, name) })
		awaitState(t, admin, other.ID(), waiting)
		_, err = lock.Turn(t.Context(), time.Second)
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		theirs := receive(t, queued)
		requireHeld(t, theirs, true)
		requireHeld(t, lock, false)
		require.NoError(t, lock.Err(), "given away, not lost")
		_, err = lock.Turn(t.Context(), 0)
		require.ErrorIs(t, err, notify.ErrLockLost, "it was not held")
		require.NoError(t, first.Err())

		// A context that ends before costs nothing, in the middle the session.
		ended, end := context.WithCancelCause(t.Context())
		end(errOurs)
		_, err = theirs.Turn(ended, 0)
		require.ErrorIs(t, err, errOurs)
		requireHeld(t, theirs, true)
		again := result(func() *notify.Lock { return mustLock(t, first, name) })
		awaitState(t, admin, first.ID(), waiting)
		ctx, cancel := context.WithCancelCause(t.Context())
		turned := result(func() error {
			_, err := theirs.Turn(ctx, patience)
			return err
		})
		requireHeld(t, receive(t, again), true)
		awaitState(t, admin, other.ID(), waiting)
		cancel(errOurs)
		err = receive(t, turned)
		require.ErrorIs(t, err, errOurs)
		require.ErrorIs(t, err, notify.ErrLockLost)
		require.ErrorIs(t, theirs.Err(), notify.ErrLockLost)
		require.ErrorIs(t, other.Err(), errOurs)
	})
}

// A wait that a DBA ends (KILL QUERY) is an error: 1317 on MySQL, NULL on MariaDB. The
// session is of use after it, and holds nothing that it does not know of.
func TestAWaitThatIsKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		admin := s.Admin(t)
		name := lockName(db)
		session, holder := openSession(t, db, 0), openSession(t, db, 0)
		held := mustLock(t, holder, name)

		waited := result(func() error {
			_, err := session.Lock(t.Context(), name, patience)
			return err
		})
		awaitState(t, admin, session.ID(), waiting)
		kill(t, admin, "QUERY", session.ID())
		err := receive(t, waited)
		require.Error(t, err)
		require.NotErrorIs(t, err, notify.ErrNotAcquired)
		if s.IsMariaDB() {
			assert.ErrorContains(t, err, "gave up the wait")
		} else {
			assert.True(t, server.Is(err, server.ErrQueryInterrupted), err)
		}
		require.NoError(t, session.Err())
		require.NoError(t, held.Release(t.Context()))
		lock := mustLock(t, session, name)

		// In the middle of a turn: the lock was let go, and somebody else may have had it.
		queued := result(func() *notify.Lock { return mustLock(t, holder, name) })
		awaitState(t, admin, holder.ID(), waiting)
		turned := result(func() error {
			_, err := lock.Turn(t.Context(), patience)
			return err
		})
		held = receive(t, queued)
		awaitState(t, admin, session.ID(), waiting)
		kill(t, admin, "QUERY", session.ID())
		require.ErrorIs(t, receive(t, turned), notify.ErrLockLost)
		require.ErrorIs(t, lock.Err(), notify.ErrLockLost)
		require.NoError(t, session.Err())
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, mustLock(t, session, name).Release(t.Context()))
	})
}

// Kills at any moment, just before a grant and just after it too, leave no lock that
// the session does not know of.
func TestKillsAtAnyMoment(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		admin := s.Admin(t)
		other := openSession(t, db, 0)
		var victim atomic.Uint64
		stop := make(chan struct{})
		var killer sync.WaitGroup
		killer.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					_, err := admin.Exec(fmt.Sprintf("KILL QUERY %d", victim.Load()))
					assert.True(t, err == nil || server.Is(err, 1094), err) // gone by now
				}
			}
		})
		defer killer.Wait()
		defer close(stop)
		for i := range 200 {
			session, err := db.Session(t.Context(), notify.SessionOptions{})
			require.NoError(t, err)
			victim.Store(session.ID())
			lock, err := session.Lock(t.Context(), lockName(db), patience)
			if err == nil && i%2 == 0 {
				_, err = lock.Turn(t.Context(), patience)
			}
			if err == nil {
				err = lock.Release(t.Context())
			}
			// Whatever became of it, it does not hold the lock any more.
			free, err2 := other.Lock(t.Context(), lockName(db), patience)
			require.NoError(t, err2, "after %v", err)
			require.NoError(t, free.Release(t.Context()))
			require.NoError(t, session.Close())
		}
	})
}

// Two sessions that wait for each other: the server tells one of them, which holds
// what it held.
func TestDeadlockOfLocks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		one, two := openSession(t, db, 0), openSession(t, db, 0)
		x, y := lockName(db, "x"), lockName(db, "y")
		held := mustLock(t, one, x)
		mustLock(t, two, y)
		type outcome struct {
			session *notify.Session
			lock    *notify.Lock
			err     error
		}
		outcomes := make(chan outcome, 2)
		wait := func(session *notify.Session, name string) {
			lock, err := session.Lock(t.Context(), name, patience)
			outcomes <- outcome{session, lock, err}
		}
		go wait(one, y)
		awaitState(t, s.Admin(t), one.ID(), waiting)
		go wait(two, x)
		victim := receive(t, outcomes)
		require.Error(t, victim.err)
		assert.True(t, server.Is(victim.err, server.ErrUserLockDeadlock, server.ErrDeadlock), victim.err)
		require.NoError(t, victim.session.Err())
		if victim.session == one {
			requireHeld(t, held, true)
		}
		require.NoError(t, victim.session.Close())
		survivor := receive(t, outcomes)
		require.NoError(t, survivor.err)
		requireHeld(t, survivor.lock, true)
	})
}

func TestTwoLocksOfASession(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		session, other := openSession(t, db, short), openSession(t, db, 0)
		x, y := mustLock(t, session, lockName(db, "x")), mustLock(t, session, lockName(db, "y"))
		require.NoError(t, x.Release(t.Context()))
		requireHeld(t, y, true)
		mustLock(t, other, x.Name())
		_, err := other.TryLock(t.Context(), y.Name())
		require.ErrorIs(t, err, notify.ErrNotAcquired)

		// One is lost, the other stays.
		z := mustLock(t, session, lockName(db, "z"))
		require.Equal(t, 1, value[int](t, session, "SELECT RELEASE_LOCK(?)", z.Name()))
		await(t, z.Lost(), "the loss")
		require.NoError(t, y.Err())
		require.NoError(t, session.Err())
		requireHeld(t, y, true)
	})
}

// A release comes after what the session does just now, and is not given up when the
// caller's context has ended.
func TestReleaseWaitsForItsTurn(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		session := openSession(t, db, 0)
		lock := mustLock(t, session, lockName(db))
		inside, leave := make(chan struct{}), make(chan struct{})
		busy := result(func() error {
			return session.Do(t.Context(), func(*sqlx.Conn) error {
				close(inside)
				<-leave
				return nil
			})
		})
		await(t, inside, "the statement")
		ended, end := context.WithCancel(t.Context())
		end()
		released := result(func() error { return lock.Release(ended) })
		close(leave)
		require.NoError(t, receive(t, busy))
		require.NoError(t, receive(t, released))
		mustLock(t, openSession(t, db, 0), lockName(db))
	})
}

// A release that fails costs the session: a lock that may be held and that nobody
// looks after would keep everybody else out.
func TestAReleaseThatFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, hide(config)) // no watch, which would see the end first
		session := openSession(t, db, never)
		lock := mustLock(t, session, lockName(db))
		kill(t, s.Admin(t), "CONNECTION", session.ID())
		err := lock.Release(t.Context())
		require.Error(t, err)
		await(t, session.Lost(), "the loss")
		mustLock(t, openSession(t, db, 0), lockName(db))
	})
}

// The account needs no privilege for locks and their waits.
func TestLockWithoutPrivileges(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		user := s.User(t, config, "SELECT ON "+config.DBName+".*")
		db := openDB(t, user)
		lock := mustLock(t, openSession(t, db, 0), lockName(db))
		_, err := lock.Turn(t.Context(), 0)
		require.NoError(t, err)
		requireHeld(t, lock, true)
		require.NoError(t, lock.Release(t.Context()))
		var failure *mysql.MySQLError
		_, err = db.Pool().Exec("CREATE TABLE x (id INT)")
		require.ErrorAs(t, err, &failure)
	})
}
