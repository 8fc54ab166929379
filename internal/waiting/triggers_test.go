package waiting_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// If a trigger is dropped by hand, without a hint to the listeners, they notice it after the leader's wait at the latest, also while
// rows keep coming, and notice its return.
func TestTriggerDroppedByHand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, busy := range []bool{false, true} {
			t.Run(fmt.Sprint("busy ", busy), func(t *testing.T) {
				t.Parallel()
				config := s.Database(t)
				db := open(t, config)
				makeTopic(t, db, config, "orders", true)
				w := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug))
				w.SetLeaderWait(2 * time.Second)
				l := w.Listen(topicOf("orders"))
				defer func() { require.NoError(t, l.Close()) }()
				ready(t, l)
				mysqltest.Exec(t, db, "DROP TRIGGER "+waiting.TriggerName("orders", "insert"))
				mysqltest.Eventually(t, "the trigger is missed", func() bool {
					if busy {
						mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
					}
					return errors.Is(l.Ready(t.Context()), waiting.ErrNoTrigger)
				})
				head, err := l.Head(t.Context())
				require.NoError(t, err)
				mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
				mysqltest.Eventually(t, "the row is found by polling", func() bool {
					now, err := l.Head(t.Context())
					return err == nil && now != head
				})
				trigger, err := waiting.Trigger(config.DBName, "orders", "insert")
				require.NoError(t, err)
				mysqltest.Exec(t, db, trigger)
				mysqltest.Eventually(t, "the trigger is seen", func() bool { return l.Ready(t.Context()) == nil })
			})
		}
	})
}

// A table that was given the name of another one has a trigger that wakes another gate: its listeners poll.
func TestTriggerOfASwappedTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		other := "orders_new"
		for waiting.Gate(other) == waiting.Gate("orders") {
			other += "er"
		}
		makeTopic(t, db, config, "orders", true)
		makeTopic(t, db, config, other, true)
		w := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug))
		w.SetLeaderWait(2 * time.Second)
		l := w.Listen(topicOf("orders"))
		defer func() { require.NoError(t, l.Close()) }()
		ready(t, l)
		mysqltest.Exec(t, db, "RENAME TABLE orders TO orders_old, "+other+" TO orders")
		mysqltest.Eventually(t, "the trigger is missed", func() bool {
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
			return errors.Is(l.Ready(t.Context()), waiting.ErrNoTrigger)
		})
		require.ErrorIs(t, listen(t, config, "orders").Ready(t.Context()), waiting.ErrNoTrigger)
	})
}

// A commit wait that fails at once is not tried again and again while a transaction is open.
func TestFailingCommitWait(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		counted := config.Clone()
		commands := mysqltest.CountCommands(counted)
		topic := topicOf("orders")
		topic.CommitWait = "SELECT id FROM missing WHERE id = ?"
		l := waiting.New(counted, mysqltest.Logger(t, slog.LevelDebug)).Listen(topic)
		defer func() { require.NoError(t, l.Close()) }()
		ready(t, l)
		sleeps(t, l)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		mysqltest.Exec(t, tx, "INSERT INTO orders (payload) VALUES ('x')")
		before := commands.Statements()
		mysqltest.Window(t, 2*time.Second)
		require.Less(t, commands.Statements()-before, uint64(1000))
	})
}
