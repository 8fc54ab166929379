package waiting_test

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// A process joins a leader whose phases have the last and the first number.
func TestFollowerAtTheLastPhase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		w := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug))
		w.SetLeaderWait(10 * time.Minute) // it moves on by wakes alone
		first := w.Listen(topicOf("orders"))
		defer func() { require.NoError(t, first.Close()) }()
		ready(t, first)
		leader := mysqltest.Value[uint64](t, db, "SELECT IS_USED_LOCK(?)", waiting.LeaderLock(config.DBName, "orders"))
		has := func(lock string) bool {
			return mysqltest.Value[sql.Null[uint64]](t, db, "SELECT IS_USED_LOCK(?)", lock) == sql.Null[uint64]{V: leader, Valid: true}
		}
		holds := func(phase int) bool { return has(waiting.PhaseLock(config.DBName, "orders", leader, phase)) }
		waits := func() bool { return has(waiting.WokenLocks(config.DBName, "orders")[0]) }
		for phase, joined := 0, false; !joined; joined = holds(255) && holds(0) { // once more if it has moved on
			for steps := 0; phase != 255 || !holds(0); steps++ {
				require.Less(t, steps, 100_000)
				if phase != 255 && waits() {
					mysqltest.Exec(t, db, "CALL mqnotify_wake('orders')")
				}
				mysqltest.Window(t, time.Millisecond) // until it moves on
				for range 256 {
					if holds(phase) {
						break
					}
					phase = (phase + 1) % 256
				}
			}
			ready(t, listen(t, config, "orders"))
		}
	})
}

// Connections that vanish, of which the server learns nothing, delay a process no longer than its own statements take.
func TestVanishedConnections(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		makeTopic(t, db, config, "other", true)
		proxy := s.Proxy(t)
		w := waiting.New(proxy.Forgetful(config), mysqltest.Logger(t, slog.LevelDebug))
		w.SetLeaderWait(2 * time.Second)
		l := w.Listen(topicOf("orders"))
		defer func() { require.NoError(t, l.Close()) }()
		ready(t, l)
		proxy.Freeze()
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
		other := w.Listen(topicOf("other")) // the poller sends a statement
		defer func() { require.NoError(t, other.Close()) }()
		mysqltest.Eventually(t, "the row is found", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			head, err := l.Head(ctx)
			return err == nil && head.V == 1
		})
	})
}

// A process on a slow network can lead: that its first connections take long is not taken for a missing privilege.
func TestSlowNetwork(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		makeTopic(t, open(t, config), config, "orders", true)
		proxy := s.Proxy(t)
		proxy.Latency(250 * time.Millisecond)
		l := listen(t, proxy.Config(config), "orders")
		mysqltest.Eventually(t, "the process leads", func() bool {
			return l.Ready(t.Context()) == nil
		})
	})
}
