package core_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// kind is a waiter that must keep the guarantees of core.Waiter, and a way to change its head.
type kind struct {
	open   func(db *core.DB, session *core.Session, waits backoff.BackOff) core.Waiter
	change func(tb testing.TB, db *core.DB)
	// shared means that all waiters of a DB share sessions. Such a waiter has no policy, continues after a
	// session's loss, and its Head is the head that it saw last.
	shared bool
}

// spy is a policy that records its waits.
type spy struct {
	policy backoff.BackOff
	mu     sync.Mutex
	waits  []time.Duration
}

func (s *spy) NextBackOff() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = append(s.waits, s.policy.NextBackOff())
	return s.waits[len(s.waits)-1]
}

func (s *spy) Reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.policy.Reset()
}

func (s *spy) given() []time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.waits)
}

// await waits until n waits have begun, and returns them and all later ones.
func (s *spy) await(tb testing.TB, n int) []time.Duration {
	tb.Helper()
	require.Eventually(tb, func() bool { return len(s.given()) >= n }, patience, tick)
	return s.given()
}

func newSpy() *spy {
	return &spy{policy: &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond}}
}

var kinds = map[string]kind{
	"poll the largest id": {
		open: func(_ *core.DB, session *core.Session, waits backoff.BackOff) core.Waiter {
			return core.NewPoll(session, core.LargestID("orders", "id"), waits)
		},
		change: insert,
	},
	"poll the counter": {
		open: func(_ *core.DB, session *core.Session, waits backoff.BackOff) core.Waiter {
			return core.NewPoll(session, core.FlagCounter("orders"), waits)
		},
		change: setFlag,
	},
	"poll the row": {
		open: func(_ *core.DB, session *core.Session, waits backoff.BackOff) core.Waiter {
			return core.NewPoll(session, core.FlagRow("orders"), waits)
		},
		change: setFlag,
	},
	"handshake": {
		open: func(db *core.DB, session *core.Session, waits backoff.BackOff) core.Waiter {
			name := core.HandshakeName(db.Name(), "orders")
			return core.NewHandshake(session, name, core.LargestID("orders", "id"), waits)
		},
		change: insert,
	},
	"auto": {
		open: func(db *core.DB, _ *core.Session, _ backoff.BackOff) core.Waiter {
			return core.NewAuto(db, core.LargestID("orders", "id"), core.AutoOptions{})
		},
		change: insert,
		shared: true,
	},
	"auto of the counter": {
		open: func(db *core.DB, _ *core.Session, _ backoff.BackOff) core.Waiter {
			return core.NewAuto(db, core.FlagCounter("orders"), core.AutoOptions{})
		},
		change: setFlag,
		shared: true,
	},
}

func setFlag(tb testing.TB, db *core.DB) {
	tb.Helper()
	require.NoError(tb, notify.Flag{Topic: "orders"}.Set(tb.Context(), db.Pool()))
}

// TestWaiters tests the guarantees of core.Waiter with every waiter.
func TestWaiters(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, kind := range kinds {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				conform(t, s, kind)
			})
		}
	})
}

func conform(t *testing.T, s *mysqltest.Server, kind kind) {
	// waits returns its first wait when a Wait has begun. slow's wait is an hour, so that only the tested event
	// ends it, and no poll.
	slow := func() *spy { return &spy{policy: backoff.NewConstantBackOff(time.Hour)} }
	open := func(t *testing.T, waits *spy) (db *core.DB, session *core.Session, waiter core.Waiter, _ *spy) {
		t.Helper()
		db = openDB(t, s.Tidy(t, ours))
		makeTopic(t, db)
		session = openSession(t, db, 0)
		waiter = kind.open(db, session, waits)
		t.Cleanup(func() { require.NoError(t, waiter.Close()) })
		return db, session, waiter, waits
	}
	type turn struct {
		head core.Head
		err  error
	}
	// begun returns when a Wait has begun: with the n-th wait of the policy.
	begun := func(t *testing.T, waits *spy, n int) {
		t.Helper()
		if !kind.shared {
			waits.await(t, n)
		}
	}
	// head returns the head when nothing is pending that would end a Wait.
	head := func(t *testing.T, waiter core.Waiter) core.Head {
		t.Helper()
		head, err := waiter.Head(t.Context())
		require.NoError(t, err)
		return head
	}
	wait := func(ctx context.Context, waiter core.Waiter, seen core.Head, bound time.Duration) <-chan turn {
		return mysqltest.Result(func() turn {
			head, err := waiter.Wait(ctx, seen, bound)
			return turn{head, err}
		})
	}

	t.Run("a change ends the wait", func(t *testing.T) {
		t.Parallel()
		db, _, waiter, waits := open(t, newSpy())
		seen := head(t, waiter)
		_, ok := seen.Value()
		require.False(t, ok, "nothing there yet")
		for i := range uint64(5) {
			waited := wait(t.Context(), waiter, seen, time.Hour)
			if i%2 == 0 {
				begun(t, waits, len(waits.given())+1)
			}
			kind.change(t, db)
			got := mysqltest.Receive(t, waited)
			require.NoError(t, got.err)
			_, ok := got.head.Value()
			require.True(t, ok)
			seen = got.head
			if i == 3 { // one before the wait, and a head that was read before it
				kind.change(t, db)
				got = mysqltest.Receive(t, wait(t.Context(), waiter, seen, time.Hour))
				require.NoError(t, got.err)
				seen = got.head
			}
		}
	})

	t.Run("nothing happens until the bound", func(t *testing.T) {
		t.Parallel()
		db, _, waiter, _ := open(t, newSpy())
		for _, bound := range []time.Duration{0, 200 * time.Millisecond} {
			seen := head(t, waiter)
			kind.change(t, db)
			if kind.shared {
				seen = mysqltest.Receive(t, wait(t.Context(), waiter, seen, time.Hour)).head
			} else {
				seen = head(t, waiter)
			}
			begun := time.Now()
			got := mysqltest.Receive(t, wait(t.Context(), waiter, seen, bound))
			require.NoError(t, got.err)
			assert.GreaterOrEqual(t, time.Since(begun), bound)
		}
	})

	t.Run("the context ends the wait", func(t *testing.T) {
		t.Parallel()
		_, _, waiter, waits := open(t, slow())
		seen := head(t, waiter)
		ctx, cancel := context.WithCancelCause(t.Context())
		waited := wait(ctx, waiter, seen, time.Hour)
		begun(t, waits, 1)
		cancel(errOurs)
		require.ErrorIs(t, mysqltest.Receive(t, waited).err, errOurs)
		require.ErrorIs(t, mysqltest.Receive(t, wait(ctx, waiter, seen, time.Hour)).err, errOurs, "ended before")
	})

	t.Run("close before a wait, and twice", func(t *testing.T) {
		t.Parallel()
		_, _, waiter, _ := open(t, slow())
		require.NoError(t, waiter.Close())
		require.NoError(t, waiter.Close())
		require.Error(t, mysqltest.Receive(t, wait(t.Context(), waiter, core.Head{}, time.Hour)).err)
	})

	t.Run("close during a wait, many at once", func(t *testing.T) {
		t.Parallel()
		_, _, waiter, waits := open(t, slow())
		waited := wait(t.Context(), waiter, head(t, waiter), time.Hour)
		begun(t, waits, 1)
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { assert.NoError(t, waiter.Close()) })
		}
		all.Wait()
		require.Error(t, mysqltest.Receive(t, waited).err)
	})

	t.Run("the session's loss ends the wait", func(t *testing.T) {
		t.Parallel()
		if kind.shared {
			t.Skip("it goes on: see TestKilledSessions of the package waiting")
		}
		_, session, waiter, waits := open(t, slow())
		seen := head(t, waiter)
		waited := wait(t.Context(), waiter, seen, time.Hour)
		begun(t, waits, 1)
		kill(t, s.Admin(t), "CONNECTION", session.ID())
		require.Error(t, mysqltest.Receive(t, waited).err)
		_, err := waiter.Head(t.Context())
		require.Error(t, err)
	})

	t.Run("what it reads is gone", func(t *testing.T) {
		t.Parallel()
		db, _, waiter, waits := open(t, newSpy())
		waited := wait(t.Context(), waiter, core.Head{}, time.Hour)
		begun(t, waits, 1)
		mysqltest.Exec(t, db.Pool(), "DROP TABLE orders, "+schema.FlagTable)
		require.Error(t, mysqltest.Receive(t, waited).err)
	})
}
