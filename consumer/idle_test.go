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

// Ten consumers that wait, each a process with a group of its own, send 0.15
// statements a second each at most, and producers that wait none. What the keeper
// sends is told apart by a second server with one consumer and one producer.
func TestIdleListeners(t *testing.T) {
	const listeners, window = 10, time.Minute
	type pair struct {
		name      string
		one, many *mysqltest.Server
	}
	var pairs []pair
	mysqltest.Each(t, func(_ *testing.T, s *mysqltest.Server) { // all wait at once, and live as long as this test
		add := func(mode Mode, flags ...string) {
			pairs = append(pairs, pair{
				fmt.Sprintf("%s by %s %v", s.Name(), mode, flags),
				waiting(t, s.Start(t, flags...), mode, 1, 1),
				waiting(t, s.Start(t, flags...), mode, 1+listeners, 3),
			})
		}
		add(ModeGate)
		if !s.IsMariaDB() {
			add(ModeGate, gtids...)
			add(ModeGTID, gtids...)
		}
	})
	var measured sync.WaitGroup
	for _, p := range pairs {
		measured.Go(func() {
			var one, many float64
			var both sync.WaitGroup
			both.Go(func() { one = during(t, p.one, window) })
			both.Go(func() { many = during(t, p.many, window) })
			both.Wait()
			each := (many - one) / listeners
			t.Logf("%s: %.2f statements a second with one listener and the keeper, %.2f with %d more and 2 more producers: %.3f a listener",
				p.name, one, many, listeners, each)
			assert.LessOrEqual(t, each, 0.12, p.name)
		})
	}
	measured.Wait()
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
