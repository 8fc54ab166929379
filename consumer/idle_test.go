package consumer

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/producer"
)

// Ten consumers that wait for a wake trigger, each a process with a group of its own, send at most 0.08 statements a second
// each, and waiting producers send none. The leader's process sends at most twice that. With GTIDs it is 0.12.
func TestIdleListeners(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		t.Run("trigger", func(t *testing.T) {
			t.Parallel()
			idle(t, s, true, 0.16, 0.08)
		})
		if s.IsMariaDB() || testing.Short() {
			return
		}
		t.Run("GTIDs", func(t *testing.T) {
			t.Parallel()
			// A server of its own, because a commit in any database wakes sessions that wait for GTIDs.
			// Without a trigger every process polls once a second, and asks for triggers every 5 s.
			idle(t, s.Start(t, gtids...), false, 1.3, 1.3)
		})
	})
}

var gtids = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}

// idle runs waiting consumers and producers on a server, and fails the test if the process that sends most sends
// more than leader statements a second, or the others more than each on average.
func idle(t *testing.T, s *mysqltest.Server, trigger bool, leader, each float64) {
	t.Helper()
	listeners, window := mysqltest.Size(3, 10, 10), mysqltest.Size(3*time.Second, 20*time.Second, time.Minute)
	config := s.Database(t)
	db := openConfig(t, config, "orders")
	if trigger {
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, "orders"))
	}
	var all []*mysqltest.Commands
	for range 3 {
		far, commands := counted(t, config)
		p, err := producer.New(far, "orders", producer.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		all = append(all, commands)
	}
	got := make([]collected, 1+listeners)
	for i := range got {
		far, commands := counted(t, config)
		run(t, far, "orders", Options{Group: strconv.Itoa(i), From: "beginning"}, got[i].handler())
		all = append(all, commands)
	}
	insert(t, db, "orders", "first")
	for i := range got {
		got[i].waitFor(t, "first")
	}
	sent := func() (counts []float64) {
		for _, commands := range all {
			counts = append(counts, float64(commands.Statements()))
		}
		return counts
	}
	// Every session first finds out whether pings keep it.
	if testing.Short() {
		eventually(t, func() bool { before := sent(); mysqltest.Window(t, time.Second); return sum(sent())-sum(before) < 4 }, "what the first row began does not end")
	} else {
		mysqltest.Window(t, 30*time.Second)
	}
	mysqltest.Eventually(t, "few statements are sent", func() bool { // again if a session was checked meanwhile, which happens once
		before, begun := sent(), time.Now()
		mysqltest.Window(t, window)
		after, took := sent(), time.Since(begun).Seconds()
		var most float64
		for i := range all {
			most = max(most, (after[i]-before[i])/took)
		}
		rest := ((sum(after)-sum(before))/took - most) / float64(listeners)
		t.Logf("%s: %.2f statements a second of the leader, %.3f of each of %d listeners", s.Name(), most, rest, listeners)
		// A short window allows for one statement that falls into it by chance.
		chance := 2 / window.Seconds()
		return most <= leader+chance && rest <= each+chance/float64(listeners)
	})
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
