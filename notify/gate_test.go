package notify_test

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

func openGate(tb testing.TB, db *notify.DB, options notify.GateOptions) *notify.Gate {
	tb.Helper()
	gate := notify.NewGate(db, "orders", options)
	tb.Cleanup(func() { require.NoError(tb, gate.Close()) })
	return gate
}

// A producer that lives wakes listeners of other processes, keeper or not.
func TestGateWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		first, second, third := openDB(t, config), openDB(t, config), openDB(t, config)
		makeTopic(t, first)
		listener := openGate(t, first, notify.GateOptions{})
		seen, err := listener.Head(t.Context())
		require.NoError(t, err)
		for i, producer := range []*notify.DB{second, third} {
			ringer := openGate(t, producer, notify.GateOptions{})
			require.NoError(t, ringer.Join(t.Context()))
			var all []time.Duration
			for range 200 {
				begun := time.Now()
				ringer.Ring(0)
				head, err := listener.Wait(t.Context(), seen, patience)
				all = append(all, time.Since(begun))
				require.NoError(t, err)
				assert.NotEqual(t, seen, head)
				seen = head
			}
			slices.Sort(all)
			t.Log(i, all[0], all[100], all[190], all[199])
		}
	})
}
