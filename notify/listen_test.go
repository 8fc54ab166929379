package notify_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// often makes a keeper look often.
func often() backoff.BackOff { return backoff.NewConstantBackOff(20 * time.Millisecond) }

// A notification wakes who listens, in whatever process, and each of them once. No
// table is needed.
func TestNotifyWakesOnce(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		var listeners []*notify.Gate
		var first, seen []notify.Head
		for range 3 { // the first keeps
			listener := notify.NewGate(openDB(t, config), "no table", notify.GateOptions{Look: often})
			defer listener.Close()
			head, err := listener.Head(t.Context())
			require.NoError(t, err)
			listeners, first = append(listeners, listener), append(first, head)
		}
		seen = slices.Clone(first)
		const times = 20
		for range times {
			require.NoError(t, notify.Notify(t.Context(), openDB(t, config), "no table"))
			for i, listener := range listeners {
				head, err := listener.Wait(t.Context(), seen[i], patience)
				require.NoError(t, err)
				require.NotEqual(t, seen[i], head, "a lost notification")
				seen[i] = head
			}
		}
		for i, listener := range listeners {
			head, err := listener.Wait(t.Context(), seen[i], 100*time.Millisecond)
			require.NoError(t, err)
			from, _ := first[i].Value()
			to, _ := head.Value()
			// A stall of a fifth of a second makes a listener wake for nothing, which on a busy machine happens often.
			assert.Less(t, to-from, uint64(times*5), "wakes of listener %d", i)
		}
	})
}

// Whoever notifies needs nobody to listen, and may be the one who keeps the gate.
func TestNotifyAlone(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		require.NoError(t, notify.Notify(t.Context(), db, "nobody"))

		ctx, cancel := context.WithCancel(t.Context())
		wakes, err := notify.Listen(ctx, db, "here")
		require.NoError(t, err)
		mysqltest.Receive(t, wakes)
		require.NoError(t, notify.Notify(t.Context(), db, "here"))
		mysqltest.Receive(t, wakes)

		cancel()
		mysqltest.Await(t, wakes, "the channel is not closed")
	})
}
