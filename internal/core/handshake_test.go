package core_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Producer and consumer alternate: when a consumer has taken the producer's turn, it has
// read and processed what the producer inserted. A turn that comes before the consumer waits
// for the lock is not taken, so the producer repeats it.
func TestHandshakeAlternates(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		name := core.HandshakeName(db.Name(), "orders")
		lock := mustLock(t, openSession(t, db, 0), name)
		session := openSession(t, db, 0)
		waiter := core.NewHandshake(session, name, core.LargestID("orders", "id"), &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 1500 * time.Millisecond})
		var seen atomic.Uint64
		var working atomic.Bool
		ctx, cancel := context.WithCancelCause(t.Context())
		consumed := mysqltest.Result(func() error {
			head, err := waiter.Head(ctx)
			for err == nil {
				working.Store(false)
				if head, err = waiter.Wait(ctx, head, time.Hour); err == nil {
					working.Store(true)
					id, _ := head.Value()
					seen.Store(id)
				}
			}
			return err
		})
		mysqltest.AwaitState(t, s.Admin(t), session.ID(), waiting)
		for i := range uint64(50) {
			insert(t, db)
			for taken := false; !taken; {
				var err error
				taken, err = lock.Pass(t.Context(), patience)
				require.NoError(t, err)
				require.False(t, working.Load())
			}
			require.Equal(t, i+1, seen.Load())
		}
		cancel(errOurs)
		require.ErrorIs(t, mysqltest.Receive(t, consumed), errOurs)
	})
}

// Without a producer the consumer keeps the lock while it sleeps. It sends at most two statements a
// second, and nothing can be inserted unnoticed. A producer that starts gets its
// turn at the end of a sleep.
func TestHandshakeWithoutAProducer(t *testing.T) {
	longest := mysqltest.Size(600*time.Millisecond, 1500*time.Millisecond, 1500*time.Millisecond)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := openTopic(t, own)
		name := core.HandshakeName(db.Name(), "orders")
		waits := &spy{policy: &notify.Fibonacci{Min: 50 * time.Millisecond, Max: longest}} // the default
		session := openSession(t, db, 0)
		waiter := core.NewHandshake(session, name, core.LargestID("orders", "id"), waits)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		waited := mysqltest.Result(func() core.Head {
			head, err := waiter.Wait(t.Context(), seen, time.Hour)
			assert.NoError(t, err)
			return head
		})
		require.Eventually(t, func() bool {
			all := waits.given()
			return len(all) > 0 && all[len(all)-1] == longest
		}, patience, tick)
		begun, questions := time.Now(), own.Questions(t)
		n := len(waits.given()) // later, so that each look that is waited for counts
		waits.await(t, n+3)
		asked := float64(own.Questions(t) - questions - 1)
		assert.LessOrEqual(t, asked, 3*time.Since(begun).Seconds()/longest.Seconds())
		assert.GreaterOrEqual(t, asked, 5.0, "it looks")

		other := openSession(t, db, 0)
		_, err = other.TryLock(t.Context(), name)
		require.ErrorIs(t, err, core.ErrNotAcquired, "it keeps the lock while it sleeps")
		n, begun = len(waits.given()), time.Now()
		producer := mustLock(t, other, name)
		if time.Since(begun) < 2*longest { // otherwise the machine was held up
			assert.LessOrEqual(t, len(waits.given())-n, 2, "sleeps until a producer that comes has its turn")
		}
		mysqltest.AwaitState(t, own.Admin(t), session.ID(), waiting) // it has let the lock go, and is not in the queue yet
		insert(t, db)
		assert.Empty(t, waited, "it waits for its turn")
		_, err = producer.Pass(t.Context(), time.Second)
		require.ErrorIs(t, err, core.ErrNotAcquired, "the consumer works while it holds the lock")
		head := mysqltest.Receive(t, waited)
		assert.NotEqual(t, seen, head)

		// The waits fell back, so a returning producer gets its turn at once.
		n = len(waits.given())
		waited = mysqltest.Result(func() core.Head {
			next, err := waiter.Wait(t.Context(), head, time.Hour)
			assert.NoError(t, err)
			return next
		})
		assert.Equal(t, 50*time.Millisecond, waits.await(t, n+1)[n])
		producer = mustLock(t, other, name)
		insert(t, db)
		require.NoError(t, producer.Release(t.Context()))
		assert.NotEqual(t, head, mysqltest.Receive(t, waited))
	})
}

// A producer that lives and has nothing to insert costs nothing: the consumer waits in
// the server.
func TestHandshakeWithASilentProducer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for bounds; TestHandshakeAlternates has the turns")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := openTopic(t, own)
		name := core.HandshakeName(db.Name(), "orders")
		producer := openSession(t, db, never)
		mustLock(t, producer, name)
		session := openSession(t, db, never)
		waiter := core.NewHandshake(session, name, core.LargestID("orders", "id"), &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 1500 * time.Millisecond})
		waited := mysqltest.Result(func() error {
			begun := time.Now()
			_, err := waiter.Wait(t.Context(), core.Head{}, 3*time.Second)
			assert.GreaterOrEqual(t, time.Since(begun), 3*time.Second)
			return err
		})
		mysqltest.AwaitState(t, own.Admin(t), session.ID(), waiting)
		questions := own.Questions(t)
		require.NoError(t, mysqltest.Receive(t, waited))
		assert.Zero(t, own.Questions(t)-questions-1)

		// The producer's death wakes the consumer.
		waited = mysqltest.Result(func() error {
			_, err := waiter.Wait(t.Context(), core.Head{}, time.Hour)
			return err
		})
		mysqltest.AwaitState(t, own.Admin(t), session.ID(), waiting)
		insert(t, db)
		kill(t, own.Admin(t), "CONNECTION", producer.ID())
		require.NoError(t, mysqltest.Receive(t, waited))

		// The next producer takes its turn and inserts nothing, for longer than the consumer's
		// bound. Its next row wakes the consumer.
		next := openSession(t, db, never)
		queued := mysqltest.Result(func() *core.Lock { return mustLock(t, next, name) })
		mysqltest.AwaitState(t, own.Admin(t), next.ID(), waiting)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		for range 2 {
			head, err := waiter.Wait(t.Context(), seen, time.Second)
			require.NoError(t, err)
			assert.Equal(t, seen, head)
		}
		lock := mysqltest.Receive(t, queued)
		woken := mysqltest.Result(func() core.Head {
			head, err := waiter.Wait(t.Context(), seen, time.Hour)
			assert.NoError(t, err)
			return head
		})
		mysqltest.AwaitState(t, own.Admin(t), session.ID(), waiting)
		insert(t, db)
		require.NoError(t, lock.Release(t.Context()))
		assert.NotEqual(t, seen, mysqltest.Receive(t, woken))
	})
}

// A consumer that has lost the lock, but not its session, must not continue: a producer may have inserted rows in the meantime.
func TestHandshakeThatLostItsLock(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		name := core.HandshakeName(db.Name(), "orders")
		session := openSession(t, db, 0)
		waiter := core.NewHandshake(session, name, core.LargestID("orders", "id"), newSpy())
		insert(t, db)
		head, err := waiter.Wait(t.Context(), core.Head{}, time.Hour)
		require.NoError(t, err)
		require.Equal(t, 1, value[int](t, session, "SELECT RELEASE_LOCK(?)", name))
		_, err = waiter.Wait(t.Context(), head, time.Hour)
		require.ErrorIs(t, err, core.ErrLockLost)
		require.NoError(t, waiter.Close())
	})
}
