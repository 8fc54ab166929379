package consumer

import (
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/producer"
)

// Ten consumers that wait, each a process with a group of its own, send 0.08
// statements a second each at most, 0.12 by GTIDs, and producers that wait none. What the
// keeper sends is told apart by a second server with one consumer and one producer: there
// is little but its looks, and with GTIDs less than a poll each five seconds.
func TestIdleListeners(t *testing.T) {
	const listeners, window = 10, time.Minute
	type pair struct {
		name      string
		one, many *mysqltest.Server
		looks     float64 // a second
		each      float64 // the most, of a listener
	}
	var pairs []pair
	mysqltest.Each(t, func(_ *testing.T, s *mysqltest.Server) { // all wait at once, and live as long as this test
		add := func(mode Mode, looks, each float64, flags ...string) {
			pairs = append(pairs, pair{
				fmt.Sprintf("%s by %s %v", s.Name(), mode, flags),
				waiting(t, s.Start(t, flags...), mode, 1, 1),
				waiting(t, s.Start(t, flags...), mode, 1+listeners, 3),
				looks, each,
			})
		}
		add(ModeGate, 1.1, 0.08) // the waits between looks vary
		if !s.IsMariaDB() {
			add(ModeGate, 0, 0.08, gtids...)
			add(ModeGTID, 0.1, 0.12, gtids...) // the producer keeps a gate for nobody
		}
	})
	var measured sync.WaitGroup
	for _, p := range pairs {
		measured.Go(func() {
			var one, many float64
			var both sync.WaitGroup
			both.Go(func() { one = settled(t, p.one, window) })
			both.Go(func() { many = settled(t, p.many, window) })
			both.Wait()
			each := (many - one) / listeners
			t.Logf("%s: %.2f statements a second with one listener and the keeper, %.2f with %d more and 2 more producers: %.3f a listener",
				p.name, one, many, listeners, each)
			assert.LessOrEqual(t, each, p.each, p.name)
			assert.LessOrEqual(t, one, p.looks+0.2, p.name)
		})
	}
	measured.Wait()
}

// settled is during after a time in which each session has found out whether pings keep it.
func settled(tb testing.TB, s *mysqltest.Server, window time.Duration) float64 {
	tb.Helper()
	during(tb, s, 20*time.Second)
	return during(tb, s, window)
}

var gtids = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}

// waiting has so many consumers and producers wait on a server.
func waiting(tb testing.TB, s *mysqltest.Server, mode Mode, consumers, producers int) *mysqltest.Server {
	tb.Helper()
	config := s.Database(tb)
	db := openConfig(tb, config, "orders")
	for range producers {
		p, err := producer.New(openConfig(tb, config), "orders", producer.Options{})
		require.NoError(tb, err)
		tb.Cleanup(func() { require.NoError(tb, p.Close()) })
		require.NoError(tb, p.Join(tb.Context()))
	}
	got := make([]collected, consumers)
	for i := range got {
		run(tb, openConfig(tb, config), "orders", Options{Group: strconv.Itoa(i), From: Beginning(), Mode: mode}, got[i].handler())
	}
	insert(tb, db, "orders", "first")
	for i := range got {
		got[i].waitFor(tb, "first")
	}
	eventually(tb, func() bool { return during(tb, s, time.Second) < 10 }, "what the first row began does not end")
	return s
}
