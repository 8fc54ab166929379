package consumer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// openWoken makes a topic with a wake trigger, and options with which nothing else finds a row in time.
func openWoken(t *testing.T, s *mysqltest.Server, topics ...string) (*notify.DB, Options) {
	t.Helper()
	db := openConfig(t, s.Database(t), topics...)
	require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, topics...))
	seldom := func() backoff.BackOff { return backoff.NewConstantBackOff(time.Hour) }
	return db, Options{From: Beginning(), Gate: notify.GateOptions{Look: seldom}, Poll: seldom()}
}

// A row that any program inserts is handled soon after its commit, however long the transaction is.
func TestPlainInsertWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, options := openWoken(t, s, "orders")
		var got collected
		r := run(t, db, "orders", options, got.handler())
		insert(t, db, "orders", "first")
		got.waitFor(t, "first")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "INSERT INTO orders (payload) VALUES ('second')")
		mysqltest.Window(t, 1500*time.Millisecond) // longer than the wait for its commit
		require.NoError(t, tx.Commit())
		got.waitFor(t, "first", "second")
		rolledBack, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, rolledBack, "INSERT INTO orders (payload) VALUES ('never')")
		require.NoError(t, rolledBack.Rollback())
		insert(t, db, "orders", "third")
		got.waitFor(t, "first", "second", "third")
		require.NoError(t, r.end(t))
	})
}

// A consumer whose trigger is removed polls, and one that begins later does, too.
func TestTriggerRemoved(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, options := openWoken(t, s, "orders")
		options.Poll, options.Gate = nil, notify.GateOptions{}
		var got collected
		run(t, db, "orders", options, got.handler())
		insert(t, db, "orders", "first")
		got.waitFor(t, "first")
		_, err := wake.Remove(t.Context(), db, wake.Options{Logger: testLogger(t)}, "orders")
		require.NoError(t, err)
		insert(t, db, "orders", "second")
		got.waitFor(t, "first", "second")
		var other collected
		run(t, db, "orders", options, other.handler())
		other.waitFor(t, "first", "second")
	})
}

// The consumers of a process share the few sessions that wait.
func TestConsumersShareSessions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		var topics []string
		for i := range 10 {
			topics = append(topics, fmt.Sprintf("topic_%d", i))
		}
		db, options := openWoken(t, s, topics...)
		var handled atomic.Int32
		for _, topic := range topics {
			run(t, db, topic, options, Each(func(context.Context, Message) error {
				handled.Add(1)
				return nil
			}))
		}
		for _, topic := range topics {
			insert(t, db, topic, "x")
		}
		mysqltest.Eventually(t, "all are handled", func() bool { return int(handled.Load()) == len(topics) })
		// At most 8 sessions in gates, 2 that poll, and one that helps, besides a session of each consumer's own.
		sessions := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND COMMAND <> 'Sleep'")
		require.LessOrEqual(t, sessions, 8+2+1+1)
	})
}
