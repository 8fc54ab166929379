package core_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

// A wait for a lock may take longer than the session's wait_timeout: the session lives,
// and holds the lock afterwards.
func TestWaitLongerThanTheIdleTimeout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		long := short + time.Second
		for what, wait := range map[string]func(session, other *core.Session, name string) (*core.Lock, error){
			"granted": func(session, other *core.Session, name string) (*core.Lock, error) {
				held := mustLock(t, other, name)
				granted := mysqltest.Result(func() *core.Lock { return mustLock(t, session, name) })
				serverTime(t, s.Admin(t), long)
				require.NoError(t, held.Release(t.Context()))
				return mysqltest.Receive(t, granted), nil
			},
			"pass": func(session, other *core.Session, name string) (*core.Lock, error) {
				lock := mustLock(t, session, name)
				queued := mysqltest.Result(func() *core.Lock { return mustLock(t, other, name) })
				mysqltest.AwaitState(t, s.Admin(t), other.ID(), waiting)
				turned := mysqltest.Result(func() error {
					_, err := lock.Pass(t.Context(), patience)
					return err
				})
				held := mysqltest.Receive(t, queued)
				serverTime(t, s.Admin(t), long)
				require.NoError(t, held.Release(t.Context()))
				return lock, mysqltest.Receive(t, turned)
			},
			"not granted": func(session, other *core.Session, name string) (*core.Lock, error) {
				mustLock(t, other, name)
				_, err := session.Lock(t.Context(), name, long)
				require.ErrorIs(t, err, core.ErrNotAcquired)
				return mustLock(t, session, name+".free"), nil
			},
			"with another lock": func(session, other *core.Session, name string) (*core.Lock, error) {
				lock := mustLock(t, session, name+".another")
				mustLock(t, other, name)
				begun := time.Now()
				_, err := session.Lock(t.Context(), name, long)
				require.ErrorIs(t, err, core.ErrNotAcquired)
				require.GreaterOrEqual(t, time.Since(begun), long-100*time.Millisecond)
				return lock, nil
			},
			"pass with another lock": func(session, other *core.Session, name string) (*core.Lock, error) {
				another := mustLock(t, session, name+".another")
				lock := mustLock(t, session, name)
				queued := mysqltest.Result(func() *core.Lock { return mustLock(t, other, name) })
				mysqltest.AwaitState(t, s.Admin(t), other.ID(), waiting)
				turned := mysqltest.Result(func() (err error) {
					taken, err := lock.Pass(t.Context(), patience)
					assert.True(t, taken)
					return err
				})
				held := mysqltest.Receive(t, queued)
				serverTime(t, s.Admin(t), long)
				require.NoError(t, held.Release(t.Context()))
				require.NoError(t, mysqltest.Receive(t, turned))
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
				if !testing.Short() { // several touches later
					serverTime(t, s.Admin(t), short)
				}
				require.NoError(t, lock.Err())
				require.NoError(t, session.Err())
				requireHeld(t, lock, true)
			})
		}
	})
}

// The sessions that wait for the lock hold it during a Pass, in the order in which they came.
func TestPassInOrder(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		admin := s.Admin(t)
		name := lockName(db)
		first := openSession(t, db, 0)
		lock := mustLock(t, first, name)

		taken, err := lock.Pass(t.Context(), 0)
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
				mysqltest.AwaitState(t, admin, first.ID(), waiting) // it has read which session holds the lock
				assert.NoError(t, lock.Release(t.Context()))
			})
			mysqltest.AwaitState(t, admin, session.ID(), waiting)
		}
		taken, err = lock.Pass(t.Context(), patience)
		require.NoError(t, err)
		assert.True(t, taken)
		order = append(order, "first")
		all.Wait()
		assert.Equal(t, []string{"second", "third", "fourth", "first"}, order)
		requireHeld(t, lock, true)

		// A session that came in the meantime keeps the lock.
		other := openSession(t, db, 0)
		queued := mysqltest.Result(func() *core.Lock { return mustLock(t, other, name) })
		mysqltest.AwaitState(t, admin, other.ID(), waiting)
		_, err = lock.Pass(t.Context(), time.Second)
		require.ErrorIs(t, err, core.ErrNotAcquired)
		theirs := mysqltest.Receive(t, queued)
		requireHeld(t, theirs, true)
		requireHeld(t, lock, false)
		require.NoError(t, lock.Err(), "given away, not lost")
		_, err = lock.Pass(t.Context(), 0)
		require.ErrorIs(t, err, core.ErrLockLost, "it was not held")
		require.NoError(t, first.Err())

		// A context that ends before the statement changes nothing; during the statement it closes the session.
		ended, end := context.WithCancelCause(t.Context())
		end(errOurs)
		_, err = theirs.Pass(ended, 0)
		require.ErrorIs(t, err, errOurs)
		requireHeld(t, theirs, true)
		again := mysqltest.Result(func() *core.Lock { return mustLock(t, first, name) })
		mysqltest.AwaitState(t, admin, first.ID(), waiting)
		ctx, cancel := context.WithCancelCause(t.Context())
		turned := mysqltest.Result(func() error {
			_, err := theirs.Pass(ctx, patience)
			return err
		})
		requireHeld(t, mysqltest.Receive(t, again), true)
		mysqltest.AwaitState(t, admin, other.ID(), waiting)
		cancel(errOurs)
		err = mysqltest.Receive(t, turned)
		require.ErrorIs(t, err, errOurs)
		require.ErrorIs(t, err, core.ErrLockLost)
		require.ErrorIs(t, theirs.Err(), core.ErrLockLost)
		require.ErrorIs(t, other.Err(), errOurs)
	})
}

// A wait that a DBA ends (KILL QUERY) is an error: 1317 on MySQL, NULL on MariaDB. The
// session is usable afterwards, and holds no lock that it does not know of.
func TestWaitIsKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		admin := s.Admin(t)
		name := lockName(db)
		session, holder := openSession(t, db, 0), openSession(t, db, 0)
		held := mustLock(t, holder, name)

		waited := mysqltest.Result(func() error {
			_, err := session.Lock(t.Context(), name, patience)
			return err
		})
		mysqltest.AwaitState(t, admin, session.ID(), waiting)
		kill(t, admin, "QUERY", session.ID())
		err := mysqltest.Receive(t, waited)
		require.Error(t, err)
		require.NotErrorIs(t, err, core.ErrNotAcquired)
		if s.IsMariaDB() {
			assert.ErrorContains(t, err, "gave up the wait")
		} else {
			assert.True(t, server.Is(err, server.ErrQueryInterrupted), err)
		}
		require.NoError(t, session.Err())
		require.NoError(t, held.Release(t.Context()))
		lock := mustLock(t, session, name)

		// During a pass: the lock was released, and another session may have held it.
		queued := mysqltest.Result(func() *core.Lock { return mustLock(t, holder, name) })
		mysqltest.AwaitState(t, admin, holder.ID(), waiting)
		turned := mysqltest.Result(func() error {
			_, err := lock.Pass(t.Context(), patience)
			return err
		})
		held = mysqltest.Receive(t, queued)
		mysqltest.AwaitState(t, admin, session.ID(), waiting)
		kill(t, admin, "QUERY", session.ID())
		require.ErrorIs(t, mysqltest.Receive(t, turned), core.ErrLockLost)
		require.ErrorIs(t, lock.Err(), core.ErrLockLost)
		require.NoError(t, session.Err())
		require.NoError(t, held.Release(t.Context()))
		require.NoError(t, mustLock(t, session, name).Release(t.Context()))
	})
}

// Kills at any moment, also just before and just after a grant, leave no lock that
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
			session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
			require.NoError(t, err)
			victim.Store(session.ID())
			lock, err := session.Lock(t.Context(), lockName(db), patience)
			if err == nil && i%2 == 0 {
				_, err = lock.Pass(t.Context(), patience)
			}
			if err == nil {
				err = lock.Release(t.Context())
			}
			// Whatever happened, the session no longer holds the lock.
			free, err2 := other.Lock(t.Context(), lockName(db), patience)
			require.NoError(t, err2, "after %v", err)
			require.NoError(t, free.Release(t.Context()))
			require.NoError(t, session.Close())
		}
	})
}

// If two sessions wait for each other, the server refuses one of them, which keeps
// its lock.
func TestDeadlockOfLocks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		one, two := openSession(t, db, 0), openSession(t, db, 0)
		x, y := lockName(db, "x"), lockName(db, "y")
		held := mustLock(t, one, x)
		mustLock(t, two, y)
		type outcome struct {
			session *core.Session
			lock    *core.Lock
			err     error
		}
		outcomes := make(chan outcome, 2)
		wait := func(session *core.Session, name string) {
			lock, err := session.Lock(t.Context(), name, patience)
			outcomes <- outcome{session, lock, err}
		}
		go wait(one, y)
		mysqltest.AwaitState(t, s.Admin(t), one.ID(), waiting)
		go wait(two, x)
		victim := mysqltest.Receive(t, outcomes)
		require.Error(t, victim.err)
		assert.True(t, server.Is(victim.err, server.ErrUserLockDeadlock, server.ErrDeadlock), victim.err)
		require.NoError(t, victim.session.Err())
		if victim.session == one {
			requireHeld(t, held, true)
		}
		require.NoError(t, victim.session.Close())
		survivor := mysqltest.Receive(t, outcomes)
		require.NoError(t, survivor.err)
		requireHeld(t, survivor.lock, true)
	})
}

// Held returns an error when the server does not answer, because the lock may be held or lost.
func TestHeldWithoutAnAnswer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		proxy := s.Proxy(t)
		db := openDB(t, proxy.Config(s.Database(t)))
		lock := mustLock(t, openSession(t, db, never), lockName(db))
		proxy.Freeze()
		defer proxy.Down()
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		_, err := lock.Held(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, lock.Name())
	})
}
