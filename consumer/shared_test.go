package consumer

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// connections returns the number of connections of an account.
func connections(tb testing.TB, db *notify.DB, user string) int {
	tb.Helper()
	return mysqltest.Value[int](tb, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE USER = ?", user)
}

// The consumers of many topics, each with a group, share a few connections: 8 of gates, 2 pollers, one helper, 4
// readers, one with the locks, and the pool. Nothing is lost when the server ends all of them.
func TestManyConsumers(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) { // so many consumers keep the machine busy
		const most = 20
		n := mysqltest.Many(40, 100, 500)
		topics := make([]string, n)
		for i := range topics {
			topics[i] = fmt.Sprintf("topic_%d", i)
		}
		config := s.Database(t)
		admin := openConfig(t, config, topics...)
		account := s.User(t, config, "ALL ON `"+config.DBName+"`.*")
		db, err := notify.OpenConfig(account)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		db.Pool().SetMaxOpenConns(3)

		var mu sync.Mutex
		got := make(map[string]bool) // topic and payload
		for _, topic := range topics {
			run(t, db, topic, Options{Group: "g", From: "beginning", Logger: quiet}, Each(func(_ context.Context, m Message) error {
				mu.Lock()
				defer mu.Unlock()
				got[m.Topic+" "+string(m.Payload)] = true // it may come again after a loss
				return nil
			}))
		}
		come := 0
		send := func(payload string, most int) {
			t.Helper()
			for _, topic := range topics {
				insert(t, admin, topic, payload)
			}
			come += n
			busiest := 0
			mysqltest.Eventually(t, "every consumer gets its message", func() bool {
				busiest = max(busiest, connections(t, admin, account.User))
				mu.Lock()
				defer mu.Unlock()
				return len(got) == come
			})
			t.Logf("%d consumers held %d connections at most", n, busiest)
			require.LessOrEqual(t, busiest, most)
		}
		send("first", most)
		send("second", most)
		lock := func(topic string) uint64 {
			return mysqltest.Value[uint64](t, admin.Pool(), "SELECT COALESCE(IS_USED_LOCK(?), 0)", groupLock(config.DBName, topic, "g"))
		}
		holder := lock(topics[0])
		require.NotZero(t, holder)
		for _, topic := range topics {
			require.Equal(t, holder, lock(topic))
		}

		// First the session with the locks alone, then all.
		require.True(t, mysqltest.KillSession(t, admin.Pool(), holder))
		mysqltest.Eventually(t, "every group has its lock again", func() bool {
			return !slices.ContainsFunc(topics, func(topic string) bool { h := lock(topic); return h == 0 || h == holder })
		})
		send("third", math.MaxInt) // groups whose locks the killed session still had have sessions of their own
		for _, id := range mysqltest.Values[uint64](t, admin.Pool(), "SELECT ID FROM information_schema.PROCESSLIST WHERE USER = ?", account.User) {
			mysqltest.KillSession(t, admin.Pool(), id)
		}
		send("fourth", math.MaxInt)
	})
}

// A consumer that is stopped during a read leaves the session to the other consumers, without a prepared statement of its
// own.
func TestStopInTheMiddleOfARead(t *testing.T) {
	mysqltest.NotShort(t, "TestLockedWhileReading")
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // no other test moves this server's counter
		config := s.Database(t)
		admin, db := openConfig(t, config, "orders", "invoices"), openConfig(t, config)
		var sessions []*core.Session
		ids := ""
		for range 5 {
			session, release, err := core.SharedSession(t.Context(), db)
			require.NoError(t, err)
			defer release()
			sessions = append(sessions, session)
			ids += fmt.Sprint(session.ID(), ", ")
		}
		require.Same(t, sessions[0], sessions[4], "four are shared by all")
		require.NotSame(t, sessions[0], sessions[1])
		prepared := func() (n int) {
			var name string
			require.NoError(t, admin.Pool().QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Prepared_stmt_count'").Scan(&name, &n))
			return n
		}
		before := prepared()
		var got, others collected
		c := run(t, db, "orders", Options{From: "beginning"}, got.handler())
		for range 4 { // on every session
			run(t, db, "invoices", Options{From: "beginning"}, others.handler())
		}
		insert(t, admin, "orders", "first")
		got.waitFor(t, "first")
		mysqltest.Eventually(t, "all have prepared to read", func() bool { return prepared() == before+5 })

		// An ALTER TABLE behind a writer makes a read wait for 2 s.
		writer, ddl := newConn(t, admin), newConn(t, admin)
		onConn(t, writer, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')")
		insert(t, admin, "orders", "second") // after a gap, at which the consumer polls
		got.waitFor(t, "first", "second")
		altered := mysqltest.Result(func() error {
			_, err := ddl.ExecContext(context.WithoutCancel(t.Context()), "ALTER TABLE orders ADD COLUMN more INT NULL")
			return err
		})
		mysqltest.Eventually(t, "the consumer is in the middle of a read", func() bool {
			return mysqltest.Value[int](t, admin.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST"+
				" WHERE STATE LIKE 'Waiting for table%' AND ID IN ("+ids+"0)") > 0
		})
		require.NoError(t, c.end(t))
		onConn(t, writer, "ROLLBACK")
		require.NoError(t, mysqltest.Receive(t, altered))
		for _, session := range sessions {
			require.NoError(t, session.Err())
		}
		mysqltest.Eventually(t, "its statement is closed", func() bool { return prepared() == before+4 })
		insert(t, admin, "invoices", "x")
		others.waitFor(t, "x", "x", "x", "x")
	})
}

// The end of a context does not interrupt a statement of a session that other callers use.
func TestSharedStatementOutlivesItsContext(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		session, release, err := core.SharedSession(t.Context(), db)
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var slept int
		require.NoError(t, session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			cancel()
			return conn.GetContext(ctx, &slept, "SELECT SLEEP(0.5)")
		}))
		require.Zero(t, slept)
		require.ErrorIs(t, session.Ask(ctx, func(context.Context, *sqlx.Conn) error {
			t.Error("it runs after the end of its context")
			return nil
		}), context.Canceled)
		require.NoError(t, session.Err())
		release()
		require.ErrorIs(t, session.Err(), core.ErrSessionClosed, "the last user closes it")
	})
}
