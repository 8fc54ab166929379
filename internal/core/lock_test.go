package core_test

import (
	"context"
	"math"
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
		require.ErrorContains(t, err, "already holds it")

		_, err = two.TryLock(t.Context(), name)
		require.ErrorIs(t, err, core.ErrNotAcquired)
		_, err = two.Lock(t.Context(), name, -time.Hour)
		require.ErrorIs(t, err, core.ErrNotAcquired, "less than nothing is a try")
		begun := time.Now()
		_, err = two.Lock(t.Context(), name, 1100*time.Millisecond)
		require.ErrorIs(t, err, core.ErrNotAcquired)
		assert.GreaterOrEqual(t, time.Since(begun), 1900*time.Millisecond, "rounded up, by the server's clock")

		// It waits as long as it is asked to.
		granted := mysqltest.Result(func() error {
			lock, err := two.Lock(t.Context(), name, math.MaxInt64)
			if err != nil {
				return err
			}
			return lock.Release(t.Context())
		})
		mysqltest.AwaitState(t, s.Admin(t), two.ID(), waiting)
		require.NoError(t, lock.Release(t.Context()))
		require.NoError(t, mysqltest.Receive(t, granted))
		require.NoError(t, mustLock(t, one, name).Release(t.Context()))
		require.NoError(t, one.Err())
		require.NoError(t, two.Err())
	})
}

func TestLockNamesThatServersFold(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		session := openSession(t, openDB(t, s.Database(t)), 0)
		for _, name := range []string{"", strings.Repeat("x", 65), "Orders", "two words", "größe", "a\x00", "\x7f"} {
			_, err := session.TryLock(t.Context(), name)
			require.ErrorIs(t, err, core.ErrOptions, "%q", name)
		}
		require.NoError(t, session.Err())
	})
}

// Goroutines hold the lock one after another, on one session and on many.
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
		mysqltest.Await(t, lost.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(lost), core.ErrLockLost)
		require.ErrorContains(t, context.Cause(lost), lock.Name())

		session = openSession(t, db, never)
		lock = mustLock(t, session, lockName(db))
		closed, cancelClosed := lock.Context(parent)
		defer cancelClosed()
		require.NoError(t, session.Close())
		mysqltest.Await(t, closed.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(closed), core.ErrLockLost)
		require.ErrorIs(t, context.Cause(closed), core.ErrSessionClosed)
		late, cancelLate := lock.Context(parent) // after the loss
		defer cancelLate()
		mysqltest.Await(t, late.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(late), core.ErrSessionClosed)

		lock = mustLock(t, openSession(t, db, never), lockName(db))
		ended, cancelEnded := lock.Context(parent)
		defer cancelEnded()
		end(errOurs)
		mysqltest.Await(t, ended.Done(), "the context's end")
		require.ErrorIs(t, context.Cause(ended), errOurs)
		require.NoError(t, lock.Err())
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
		require.ErrorIs(t, err, core.ErrNotAcquired)

		// One lock is lost, the other stays.
		z := mustLock(t, session, lockName(db, "z"))
		require.Equal(t, 1, value[int](t, session, "SELECT RELEASE_LOCK(?)", z.Name()))
		mysqltest.Await(t, z.Lost(), "the loss")
		require.NoError(t, y.Err())
		require.NoError(t, session.Err())
		requireHeld(t, y, true)
	})
}

// A release waits for the session's running statement, and happens even if the
// caller's context has ended.
func TestReleaseWaitsForTheStatement(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		session := openSession(t, db, 0)
		lock := mustLock(t, session, lockName(db))
		inside, leave := make(chan struct{}), make(chan struct{})
		busy := mysqltest.Result(func() error {
			return session.Do(t.Context(), func(*sqlx.Conn) error {
				close(inside)
				<-leave
				return nil
			})
		})
		mysqltest.Await(t, inside, "the statement")
		ended, end := context.WithCancel(t.Context())
		end()
		released := mysqltest.Result(func() error { return lock.Release(ended) })
		close(leave)
		require.NoError(t, mysqltest.Receive(t, busy))
		require.NoError(t, mysqltest.Receive(t, released))
		mustLock(t, openSession(t, db, 0), lockName(db))
	})
}

// A release that fails closes the session. Otherwise a lock might stay held without an owner,
// and keep all other sessions out.
func TestReleaseFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, unwatched(config)) // or the end is seen first
		session := openSession(t, db, never)
		lock := mustLock(t, session, lockName(db))
		awaitGone(t, s.Admin(t), session.ID())
		err := lock.Release(t.Context())
		require.Error(t, err)
		mysqltest.Await(t, session.Lost(), "the loss")
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
		_, err := lock.Pass(t.Context(), 0)
		require.NoError(t, err)
		requireHeld(t, lock, true)
		require.NoError(t, lock.Release(t.Context()))
		var failure *mysql.MySQLError
		_, err = db.Pool().Exec("CREATE TABLE x (id INT)")
		require.ErrorAs(t, err, &failure)
	})
}
