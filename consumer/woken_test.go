package consumer

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// openWoken creates topics with wake triggers.
func openWoken(t *testing.T, s *mysqltest.Server, topics ...string) (*notify.DB, Options) {
	t.Helper()
	db := openConfig(t, s.Database(t), topics...)
	require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, topics...))
	return db, Options{From: "beginning"}
}

// A row that any program inserts is handled soon after its commit, however long the transaction is.
func TestPlainInsertWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, options := openWoken(t, s, "orders")
		var got collected
		var triggers atomic.Int32
		options.Woken = func(w string) {
			if w == wakeTrigger {
				triggers.Add(1)
			}
		}
		r := run(t, db, "orders", options, got.handler())
		var rows []string
		mysqltest.Eventually(t, "the reader waits, and a trigger wakes it", func() bool {
			rows = append(rows, fmt.Sprint("first ", len(rows)))
			insert(t, db, "orders", rows[len(rows)-1])
			got.waitFor(t, rows...)
			return triggers.Load() > 0
		})
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "INSERT INTO orders (payload) VALUES ('second')")
		mysqltest.Window(t, 1500*time.Millisecond) // longer than the wait for its commit
		woken, committed := triggers.Load(), time.Now()
		require.NoError(t, tx.Commit())
		got.waitFor(t, append(rows, "second")...)
		require.Less(t, time.Since(committed), soon)
		require.Greater(t, triggers.Load(), woken)
		rolledBack, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, rolledBack, "INSERT INTO orders (payload) VALUES ('never')")
		require.NoError(t, rolledBack.Rollback())
		insert(t, db, "orders", "third")
		got.waitFor(t, append(rows, "second", "third")...)
		require.NoError(t, r.end(t))
	})
}

// A consumer whose trigger is removed polls, and so does one that begins later.
func TestTriggerRemoved(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, options := openWoken(t, s, "orders")
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
		// At most 8 sessions in gates, 2 pollers, and one helper, in addition to a session of each consumer.
		mysqltest.Eventually(t, "few sessions wait", func() bool {
			sessions := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND COMMAND <> 'Sleep'")
			return sessions <= 8+2+1+1
		})
	})
}

// A row that came with its commit wait does not hide rows that were committed after it while the reader was
// delayed.
func TestRowsAfterARowThatCameWithItsCommit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, options := openWoken(t, s, "orders")
		var got collected
		goOn, begun := make(chan struct{}), make(chan struct{}, 10)
		run(t, db, "orders", options, Each(func(ctx context.Context, m Message) error {
			begun <- struct{}{}
			<-goOn
			return got.handler().handle(ctx, nil, []Message{m})
		}))
		insert(t, db, "orders", "0")
		mysqltest.Await(t, begun, "the first message")
		// One row waits in the channel, the reader has one, and one comes with its commit. Each has time to get there.
		for _, payload := range []string{"1", "2", "3"} {
			insert(t, db, "orders", payload)
			mysqltest.Window(t, 50*time.Millisecond)
		}
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('4'), ('5')")
		mysqltest.Window(t, 50*time.Millisecond)
		close(goOn)
		got.waitFor(t, "0", "1", "2", "3", "4", "5")
	})
}

// The time of a message is right, whatever the server's time zone and the DSN are.
func TestCreatedAtInEveryTimeZone(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t, "--default-time-zone=+05:00")
		config := s.Database(t)
		config.ParseTime = true
		db := openConfig(t, config, "orders")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, "orders"))
		var got collected
		run(t, db, "orders", Options{From: "beginning"}, got.handler())
		for _, n := range []string{"1", "2", "3"} {
			insert(t, db, "orders", n)
			mysqltest.Eventually(t, "the message comes", func() bool { return len(got.payloads()) > 0 && got.payloads()[len(got.payloads())-1] == n })
		}
		for _, m := range got.all {
			require.WithinDuration(t, time.Now(), m.CreatedAt, 5*time.Minute)
		}
	})
}
