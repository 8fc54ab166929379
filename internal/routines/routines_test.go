package routines_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// database makes a database with topics, their wake triggers and the procedures.
func database(tb testing.TB, s *mysqltest.Server, topics ...string) (*mysql.Config, *notify.DB) {
	tb.Helper()
	config := s.Database(tb)
	db := open(tb, config)
	require.NoError(tb, schema.Init(tb.Context(), db.Pool(), topics...))
	require.NoError(tb, wake.InstallAll(tb.Context(), db, mysqltest.Logger(tb, slog.LevelWarn), topics...))
	return config, db
}

func open(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	db.Pool().SetMaxOpenConns(0)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// session is a connection of its own. It stands for a program in another language.
type session struct {
	*sql.Conn
	id uint64
}

func connect(tb testing.TB, db *notify.DB, statements ...string) session {
	tb.Helper()
	conn, err := db.Pool().DB.Conn(tb.Context())
	require.NoError(tb, err)
	tb.Cleanup(func() { // the pool must not use it again, because its variables are changed
		_ = conn.Raw(func(any) error { return errors.New("done") })
		_ = conn.Close()
	})
	s := session{Conn: conn}
	require.NoError(tb, conn.QueryRowContext(tb.Context(), "SELECT CONNECTION_ID()").Scan(&s.id))
	mysqltest.ExecAll(tb, conn, statements...)
	return s
}

// head calls mqnotify_wait.
func (s session) head(ctx context.Context, topic, after, seconds any) (head sql.Null[uint64], err error) {
	err = s.QueryRowContext(ctx, "CALL mqnotify_wait(?, ?, ?)", topic, after, seconds).Scan(&head)
	return head, err
}

// waits starts a wait in the session and returns when the session waits. The channel gets the result.
func (s session) waits(tb testing.TB, db *notify.DB, topic string, after uint64, seconds int) <-chan any {
	tb.Helper()
	result := mysqltest.Result(func() any {
		head, err := s.head(tb.Context(), topic, after, seconds)
		if err != nil {
			return err
		}
		return head
	})
	mysqltest.Eventually(tb, "the session waits", func() bool {
		return mysqltest.Value[bool](tb, db.Pool(), `SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST
			WHERE ID = ? AND STATE IN ('User lock', 'User sleep')`, s.id)
	})
	return result
}

// lead starts a consumer, and returns when a session of it leads.
func lead(tb testing.TB, config *mysql.Config, topic string) (stop func()) {
	tb.Helper()
	db, err := notify.OpenConfig(config) // closed by stop, because some tests start hundreds of leaders
	require.NoError(tb, err)
	c, err := consumer.New(db, topic, consumer.Options{Logger: mysqltest.Logger(tb, slog.LevelWarn)})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := mysqltest.Result(func() error {
		return c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error { return nil }))
	})
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(tb, mysqltest.Receive(tb, ended))
		require.NoError(tb, db.Close())
	})
	tb.Cleanup(stop)
	mysqltest.Eventually(tb, "a session leads", func() bool {
		return mysqltest.Value[bool](tb, db.Pool(), "SELECT IS_USED_LOCK(?) IS NOT NULL", waiting.WokenLocks(config.DBName, topic)[0])
	})
	return stop
}

// value is the result of a wait that found this id.
func value(id uint64) sql.Null[uint64] { return sql.Null[uint64]{V: id, Valid: true} }

func TestWait(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, autocommit := range []string{"1", "0"} {
			for _, leader := range []bool{true, false} {
				t.Run(fmt.Sprintf("autocommit %s, leader %v", autocommit, leader), func(t *testing.T) {
					t.Parallel()
					config, db := database(t, s, "größe`it's", "orders")
					if leader {
						lead(t, config, "größe`it's")
					}
					caller := connect(t, db, "SET autocommit = "+autocommit)
					head, err := caller.head(t.Context(), "größe`it's", 0, 0)
					require.NoError(t, err)
					require.False(t, head.Valid, "the table is empty")
					for id := range uint64(3) {
						result := caller.waits(t, db, "größe`it's", id, 60)
						mysqltest.Exec(t, db.Pool(), "INSERT INTO `größe``it's` (payload) VALUES ('x')")
						require.Equal(t, value(id+1), mysqltest.Receive(t, result))
						head, err = caller.head(t.Context(), "größe`it's", 0, 0)
						require.NoError(t, err)
						require.Equal(t, value(id+1), head, "the row was there before the call")
					}
					head, err = caller.head(t.Context(), "größe`it's", 3, 0.1)
					require.NoError(t, err)
					require.False(t, head.Valid, "the wait has timed out")
				})
			}
		}
	})
}

// A commit ends a wait. An uncommitted row and a rollback do not.
func TestWaitForACommit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		last := uint64(0)
		mysqltest.Eventually(t, "the row is found soon; a caller that does not know of the open transaction finds it after 2 s", func() bool {
			result := connect(t, db).waits(t, db, "orders", last, 60)
			rolledBack, err := db.Pool().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			committed, err := db.Pool().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			mysqltest.Exec(t, rolledBack, "INSERT INTO orders (payload) VALUES ('x')")
			mysqltest.Exec(t, committed, "INSERT INTO orders (payload) VALUES ('x')")
			require.NoError(t, rolledBack.Rollback())
			mysqltest.Window(t, 300*time.Millisecond)
			require.Empty(t, result)
			begun := time.Now()
			require.NoError(t, committed.Commit())
			require.Equal(t, value(last+2), mysqltest.Receive(t, result))
			woken := time.Since(begun)
			begun = time.Now()
			caller := connect(t, db)
			_, err = caller.head(t.Context(), "orders", last, 60)
			require.NoError(t, err)
			last += 2
			return woken < 10*time.Since(begun)+300*time.Millisecond
		})
	})
}

// mqnotify_await repeats its query at every INSERT, and only committed rows count.
func TestAwait(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('dull')")
		lead(t, config, "orders")
		caller := connect(t, db)
		result := mysqltest.Result(func() any {
			var id uint64
			err := caller.QueryRowContext(t.Context(), "CALL mqnotify_await('orders', ?, 60)", "SELECT MAX(id) FROM orders WHERE payload = 'it''s'").Scan(&id)
			return errors.Join(err, map[bool]error{false: fmt.Errorf("got %d", id)}[id == 3])
		})
		mysqltest.AwaitState(t, db.Pool(), caller.id, mysqltest.WaitsForLock)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('dull')")
		writer := connect(t, db, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('it''s')")
		mysqltest.Window(t, 200*time.Millisecond)
		require.Empty(t, result)
		mysqltest.Exec(t, writer, "COMMIT")
		require.Nil(t, mysqltest.Receive(t, result))
		var id sql.Null[uint64]
		require.NoError(t, caller.QueryRowContext(t.Context(), "CALL mqnotify_await('orders', 'SELECT MAX(id) FROM orders WHERE FALSE', 0.1)").Scan(&id))
		require.False(t, id.Valid)
	})
}

// A wait in an open transaction fails at once, because the transaction may not see later rows. The changes of the transaction
// are neither committed nor lost.
func TestWaitInATransaction(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := database(t, s, "orders")
		for _, begin := range []string{"START TRANSACTION", "SET autocommit = 0"} {
			caller := connect(t, db, begin, "INSERT INTO orders (payload) VALUES ('x')")
			for _, call := range []string{"mqnotify_wait('orders', 1000, 60)", "mqnotify_listen('x', 0, 60)", "mqnotify_listen('x', NULL, 60)"} {
				_, err := caller.ExecContext(t.Context(), "CALL "+call)
				refused(t, err, "25001", "COMMIT")
			}
			require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
			require.Equal(t, 1, mysqltest.Value[int](t, caller, "SELECT COUNT(*) FROM orders"))
			mysqltest.Exec(t, caller, "ROLLBACK")
			require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
		}
	})
}

// After a wait, also one that failed, the session has no open transaction and its own isolation level. At every isolation
// level, an uncommitted row does not end the wait.
func TestNothingIsLeftOpen(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		writer := connect(t, db, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')")
		for _, set := range []string{
			"autocommit = 1", "autocommit = 0", "SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED", "SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
		} {
			for _, call := range []string{
				"mqnotify_wait('orders', 0, 0)", "mqnotify_wait('orders', 1, 0.1)", "mqnotify_wait('absent', 0, 0)",
				"mqnotify_await('orders', 'SELECT no FROM orders', 0)", "mqnotify_listen('x', 0, 0)", "mqnotify_listen('x', NULL, 0)",
			} {
				statements := []string{"SET autocommit = 0", "SET " + set}
				caller := connect(t, db, statements...)
				_, _ = caller.ExecContext(t.Context(), "CALL "+call) // some fail
				if strings.HasPrefix(set, "autocommit") {
					require.Equal(t, 1, mysqltest.Value[int](t, caller, "SELECT COUNT(*) FROM orders"), "%s, %s", set, call)
				}
				caller = connect(t, db, statements...)
				_, _ = caller.ExecContext(t.Context(), "CALL "+call)
				mysqltest.Exec(t, caller, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") // fails in an open transaction
			}
			head, err := connect(t, db, "SET autocommit = 0", "SET "+set).head(t.Context(), "orders", 1, 1.2)
			require.NoError(t, err)
			require.False(t, head.Valid, set)
		}
		mysqltest.Exec(t, writer, "ROLLBACK")

		caller := connect(t, db, "SET autocommit = 0")
		_, err := caller.head(t.Context(), "absent", 0, 0)
		require.Error(t, err)
		count := func() int { return mysqltest.Value[int](t, caller, "SELECT COUNT(*) FROM orders") }
		require.Equal(t, 1, count())
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, 1, count(), "the session still reads with REPEATABLE READ")
	})
}
