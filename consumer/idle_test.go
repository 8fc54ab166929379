package consumer

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/producer"
)

// Ten consumers that wait, each a process with a group of its own, send 0.08
// statements a second each at most, 0.12 by GTIDs, and producers that wait none. One of the
// consumers, or a producer, keeps the gate: that one looks about every second, and with GTIDs
// less than every five seconds.
func TestIdleListeners(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const slack = 0.2 // the waits between looks vary
		t.Run("gate", func(t *testing.T) {
			t.Parallel()
			idle(t, s, ModeGate, mysqltest.Size(5, 1.1+slack, 1.1+slack), 0.08)
		})
		if s.IsMariaDB() || testing.Short() {
			return
		}
		// A server for each: what is committed in any database wakes those that wait for GTIDs.
		t.Run("gate with GTIDs", func(t *testing.T) {
			t.Parallel()
			idle(t, s.Start(t, gtids...), ModeGate, slack, 0.08)
		})
		t.Run("GTIDs", func(t *testing.T) {
			t.Parallel()
			idle(t, s.Start(t, gtids...), ModeGTID, 0.1+slack, 0.12) // the producer keeps a gate that no consumer waits for
		})
	})
}

var gtids = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}

// idle has consumers and producers wait on a server, and fails the test if the process that sends most sends
// more than keeper statements a second, or the others more than each on average.
func idle(t *testing.T, s *mysqltest.Server, mode Mode, keeper, each float64) {
	t.Helper()
	listeners, window := mysqltest.Size(3, 10, 10), mysqltest.Size(3*time.Second, 20*time.Second, time.Minute)
	config := s.Database(t)
	db := openConfig(t, config, "orders")
	var all []*mysqltest.Commands
	for range 3 {
		far, commands := counted(t, config)
		p, err := producer.New(far, "orders", producer.Options{})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, p.Close()) })
		require.NoError(t, p.Join(t.Context()))
		all = append(all, commands)
	}
	got := make([]collected, 1+listeners)
	for i := range got {
		far, commands := counted(t, config)
		run(t, far, "orders", Options{Group: strconv.Itoa(i), From: Beginning(), Mode: mode}, got[i].handler())
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
	// Each session finds out first whether pings keep it.
	if testing.Short() {
		eventually(t, func() bool { before := sent(); mysqltest.Window(t, time.Second); return sum(sent())-sum(before) < 4 }, "what the first row began does not end")
	} else {
		mysqltest.Window(t, 20*time.Second)
	}
	before, begun := sent(), time.Now()
	mysqltest.Window(t, window)
	after, took := sent(), time.Since(begun).Seconds()
	var most float64
	for i := range all {
		most = max(most, (after[i]-before[i])/took)
	}
	rest := ((sum(after)-sum(before))/took - most) / float64(listeners)
	t.Logf("%s by %s: %.2f statements a second of the keeper, %.3f of each of %d listeners", s.Name(), mode, most, rest, listeners)
	// A short window has room for a statement that comes by chance.
	chance := 2 / window.Seconds()
	assert.LessOrEqual(t, most, keeper+chance)
	assert.LessOrEqual(t, rest, each+chance/float64(listeners))
}

func sum(values []float64) (total float64) {
	for _, v := range values {
		total += v
	}
	return total
}
