package routines_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/routines"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// database is a database with topics, their triggers and the procedures.
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

// session is a connection of its own, as a program in another language has one.
type session struct {
	*sql.Conn
	id uint64
}

func connect(tb testing.TB, db *notify.DB, statements ...string) session {
	tb.Helper()
	conn, err := db.Pool().DB.Conn(tb.Context())
	require.NoError(tb, err)
	tb.Cleanup(func() { // not back into the pool: it has other variables
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

// waits has a session wait, and returns what the wait gives.
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

// lead has a process listen on the database, whose session leads, and waits until it does.
func lead(tb testing.TB, config *mysql.Config, topic string) (stop func()) {
	tb.Helper()
	db := open(tb, config)
	c, err := consumer.New(db, topic, consumer.Options{Logger: mysqltest.Logger(tb, slog.LevelWarn)})
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(tb.Context())
	ended := mysqltest.Result(func() error {
		return c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error { return nil }))
	})
	stop = sync.OnceFunc(func() {
		cancel()
		require.NoError(tb, mysqltest.Receive(tb, ended))
	})
	tb.Cleanup(stop)
	mysqltest.Eventually(tb, "a session leads", func() bool {
		return mysqltest.Value[bool](tb, db.Pool(), "SELECT IS_USED_LOCK(?) IS NOT NULL", waiting.WokenLocks(config.DBName, topic)[0])
	})
	return stop
}

// value is what a wait that found a row gives.
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
						require.Equal(t, value(id+1), head, "a row that is there")
					}
					head, err = caller.head(t.Context(), "größe`it's", 3, 0.1)
					require.NoError(t, err)
					require.False(t, head.Valid, "the time is over")
				})
			}
		}
	})
}

// A wait ends with the commit, and not before.
func TestWaitForACommit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		result := connect(t, db).waits(t, db, "orders", 0, 60)
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
		require.Equal(t, value(2), mysqltest.Receive(t, result))
		woken := time.Since(begun)
		begun = time.Now()
		caller := connect(t, db)
		_, err = caller.head(t.Context(), "orders", 1, 60)
		require.NoError(t, err)
		floor := time.Since(begun)
		require.Less(t, woken, 10*floor+300*time.Millisecond, "a caller that does not know of the open transaction finds the row after 2 s")
	})
}

// A query is asked again at each INSERT, and what is committed counts.
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

// refused checks the SQLSTATE of a call, and that its message names a word.
func refused(t *testing.T, err error, state, word string) {
	t.Helper()
	var failed *mysql.MySQLError
	require.ErrorAs(t, err, &failed)
	assert.Equal(t, state, string(failed.SQLState[:]), failed.Message)
	assert.Contains(t, failed.Message, word)
}

func TestArguments(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := database(t, s, "orders")
		callers := []session{connect(t, db, "SET sql_mode = 'STRICT_ALL_TABLES'"), connect(t, db, "SET sql_mode = ''")}
		for _, c := range []struct{ call, state, word string }{
			{"mqnotify_wait(NULL, 0, 0)", "22023", "topic"},
			{"mqnotify_wait('orders', NULL, 0)", "22023", "after_id"},
			{"mqnotify_wait('orders', 0, NULL)", "22023", "seconds"},
			{"mqnotify_wait('orders', 0, -1)", "22023", "negative"},
			{"mqnotify_wait('orders', -1, 0)", "22023", "after_id"},
			{"mqnotify_wait('orders', 'x', 0)", "", "after_id"},
			{"mqnotify_wait('absent', 0, 0)", "42S02", "absent"},
			{"mqnotify_wait('', 0, 0)", "42000", ""},
			{"mqnotify_wait(REPEAT('x', 65), 0, 0)", "22023", "64 characters"},
			{"mqnotify_wait('mqnotify_flag', 0, 0)", "42S22", "id"},
			{"mqnotify_wait('or`ders', 0, 0)", "42S02", "or`ders"},
			{"mqnotify_wait('or\\'ders', 0, 0)", "42S02", "or'ders"},
			{"mqnotify_wait('\U0001F600', 0, 0)", "", ""}, // no table can have this name
			{"mqnotify_await(NULL, 'SELECT MAX(id) FROM orders', 0)", "22023", "topic"},
			{"mqnotify_await('orders', NULL, 0)", "22023", "query"},
			{"mqnotify_await('orders', 'SELECT MAX(id) FROM orders', -1)", "22023", "negative"},
			{"mqnotify_await('orders', 'SELECT 1; DROP TABLE orders', 0)", "42000", "DROP"},
			{"mqnotify_await('orders', 'SELECT id, payload FROM orders', 0)", "21000", "column"},
			{"mqnotify_listen(NULL, 0, 0)", "22023", "name"},
			{"mqnotify_listen('', 0, 0)", "22023", "name"},
			{"mqnotify_listen('x', 0, NULL)", "22023", "seconds"},
			{"mqnotify_listen('x', 0, -1)", "22023", "negative"},
			{"mqnotify_publish(NULL, NULL, 'x')", "22023", "topic"},
			{"mqnotify_publish('orders', NULL, NULL)", "22023", "payload"},
			{"mqnotify_publish('absent', NULL, 'x')", "42S02", "absent"},
			{"mqnotify_publish('orders', 'no JSON', 'x')", "", "headers"},
			{"mqnotify_notify(NULL, 'x')", "22023", "name"},
			{"mqnotify_notify('', 'x')", "22023", "name"},
			{"mqnotify_notify('x', NULL)", "22023", "payload"},
			{"mqnotify_notify('x', REPEAT('x', 8001))", "22023", "8000 bytes"},
			{"mqnotify_notify(REPEAT('x', 256), '')", "22023", "255"},
			{"mqnotify_listen(REPEAT('x', 256), 0, 0)", "22023", "255"},
			{"mqnotify_publish(REPEAT('x', 65), NULL, '')", "22023", "64"},
			{"mqnotify_await(REPEAT('x', 65), 'SELECT 1', 0)", "22023", "64"},
			{"mqnotify_listen('x', -1, 0)", "22023", "negative"},
		} {
			for _, caller := range callers {
				_, err := caller.ExecContext(t.Context(), "CALL "+c.call)
				if c.state == "" && caller == callers[0] { // each server has a state of its own
					require.ErrorContains(t, err, c.word, c.call)
				}
				if c.state != "" {
					t.Log(c.call, err)
					refused(t, err, c.state, c.word)
				}
			}
		}
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_notification"))
	})
}

// In a transaction, whose reads may be of its beginning, a wait fails at once. What the transaction did is neither
// committed nor lost.
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

// A session has no open transaction after a wait, nor after one that failed, and no isolation level but its own. Whatever
// that is, what is not committed does not end the wait.
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
				mysqltest.Exec(t, caller, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") // an error in a transaction
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
		require.Equal(t, 1, count(), "REPEATABLE READ, as before")
	})
}

// Callers that wait cost the server nothing while a process leads.
func TestIdleCallers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		s = s.Start(t)
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		callers := mysqltest.Size(20, 100, 100)
		var results []<-chan any
		for range callers {
			results = append(results, connect(t, db).waits(t, db, "orders", 0, 600))
		}
		statements := func() int { return counted(t, db, "Queries") + counted(t, db, "Com_select") }
		mysqltest.Eventually(t, "all wait for the lock", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE = ?",
				mysqltest.WaitsForLock) == callers+1
		})
		own := statements()
		own = statements() - own                                                    // the question itself
		mysqltest.Eventually(t, "a window in which they ask nothing", func() bool { // all are woken about once a minute
			before, begun := statements(), time.Now()
			mysqltest.Window(t, 2*time.Second)
			sent := statements() - before - own
			t.Logf("%s: %d statements in %v by %d callers and the leader's process", s.Name(), sent, time.Since(begun), callers)
			return sent <= 2*2 // the leader's process may send one a second, which counts twice
		})
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		for _, result := range results {
			require.Equal(t, value(1), mysqltest.Receive(t, result))
		}
	})
}

// counted is a counter of the server's.
func counted(tb testing.TB, db *notify.DB, name string) (n int) {
	tb.Helper()
	require.NoError(tb, db.Pool().QueryRowContext(tb.Context(), "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&name, &n))
	return n
}

// Without a leader a caller reads the table once a second after a few seconds, and more often before.
func TestPollingCallers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		s = s.Start(t)
		_, db := database(t, s, "orders")
		result := connect(t, db).waits(t, db, "orders", 0, 60)
		mysqltest.Window(t, 4*time.Second)
		before, begun := counted(t, db, "Com_select"), time.Now()
		mysqltest.Window(t, 3*time.Second)
		sent, took := counted(t, db, "Com_select")-before, time.Since(begun)
		t.Logf("%s: %d reads in %v", s.Name(), sent, took)
		require.Positive(t, sent)
		require.LessOrEqual(t, float64(sent), took.Seconds()+1)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, value(1), mysqltest.Receive(t, result))
	})
}

// A caller in SQL is woken about as soon as a consumer in Go.
func TestWokenSoon(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		far := open(t, config)
		c, err := consumer.New(far, "orders", consumer.Options{From: "beginning", Logger: mysqltest.Logger(t, slog.LevelWarn)})
		require.NoError(t, err)
		handled := make(chan time.Time, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := mysqltest.Result(func() error {
			return c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error { handled <- time.Now(); return nil }))
		})
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('first')")
		mysqltest.Receive(t, handled)
		caller := connect(t, db)
		var inGo, inSQL []time.Duration
		for id := range uint64(mysqltest.Size(20, 60, 300)) {
			woken := make(chan time.Time, 1)
			result := mysqltest.Result(func() any {
				head, err := caller.head(t.Context(), "orders", id+1, 60)
				woken <- time.Now()
				return errors.Join(err, map[bool]error{false: errors.New("no head")}[head.Valid])
			})
			mysqltest.AwaitState(t, db.Pool(), caller.id, mysqltest.WaitsForLock)
			begun := time.Now()
			mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
			inGo = append(inGo, mysqltest.Receive(t, handled).Sub(begun))
			inSQL = append(inSQL, mysqltest.Receive(t, woken).Sub(begun))
			require.Nil(t, mysqltest.Receive(t, result))
		}
		slices.Sort(inGo)
		slices.Sort(inSQL)
		t.Logf("%s: INSERT to handler %v, to the end of mqnotify_wait %v", s.Name(), inGo[len(inGo)/2], inSQL[len(inSQL)/2])
		require.LessOrEqual(t, inSQL[len(inSQL)/2], 3*inGo[len(inGo)/2]+5*time.Millisecond)
		cancel()
		require.NoError(t, mysqltest.Receive(t, ended))
	})
}

// Rows of a table without a trigger are found by polling, and a caller that waits when the trigger goes learns of that.
func TestWithoutTrigger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		caller := connect(t, db)
		for id := range uint64(2) {
			result := caller.waits(t, db, "orders", id, 60)
			if id == 0 {
				mysqltest.AwaitState(t, db.Pool(), caller.id, mysqltest.WaitsForLock)
				_, err := wake.Remove(t.Context(), db, wake.Options{Logger: mysqltest.Logger(t, slog.LevelWarn)}, "orders")
				require.NoError(t, err)
			}
			mysqltest.AwaitState(t, db.Pool(), caller.id, "User sleep")
			mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
			require.Equal(t, value(id+1), mysqltest.Receive(t, result))
		}
	})
}

// A caller that is killed gets the server's error, and its connection is as it was.
func TestCallerIsKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, leader := range []bool{true, false} {
			config, db := database(t, s, "orders")
			state := "User sleep"
			if leader {
				lead(t, config, "orders")
				state = mysqltest.WaitsForLock
			}
			caller := connect(t, db)
			result := caller.waits(t, db, "orders", 0, 600)
			mysqltest.AwaitState(t, db.Pool(), caller.id, state)
			require.True(t, mysqltest.KillQuery(t, db.Pool(), caller.id))
			failed, _ := mysqltest.Receive(t, result).(error)
			refused(t, failed, "70100", "interrupted")
			require.Zero(t, mysqltest.Value[int](t, caller, "SELECT RELEASE_ALL_LOCKS()"))
			writer := connect(t, db, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')")
			require.Zero(t, mysqltest.Value[int](t, caller, "SELECT COUNT(*) FROM orders"), "it reads what is committed")
			mysqltest.Exec(t, writer, "COMMIT")
			head, err := caller.head(t.Context(), "orders", 0, 60)
			require.NoError(t, err)
			require.Equal(t, value(1), head)
		}
	})
}

// A caller whose client dies is gone soon after, or, where it polls, at the end of its wait.
func TestCallerDies(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, leader := range []bool{true, false} {
			t.Run(fmt.Sprint("leader ", leader), func(t *testing.T) {
				t.Parallel()
				config, db := database(t, s, "orders")
				seconds := 3
				if leader {
					seconds = 600
					lead(t, config, "orders")
				}
				caller := connect(t, open(t, config))
				ctx, die := context.WithCancel(t.Context())
				result := mysqltest.Result(func() error { _, err := caller.head(ctx, "orders", 0, seconds); return err })
				mysqltest.AwaitState(t, db.Pool(), caller.id, map[bool]string{true: mysqltest.WaitsForLock, false: "User sleep"}[leader])
				die() // closes the socket
				require.Error(t, mysqltest.Receive(t, result))
				mysqltest.Eventually(t, "the session ends", func() bool {
					return !mysqltest.Value[bool](t, db.Pool(), "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST WHERE ID = ?", caller.id)
				})
			})
		}
	})
}

// A caller that holds advisory locks of its own keeps them.
func TestLocksOfTheCaller(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		caller := connect(t, db, "DO GET_LOCK('mine', 0)")
		result := caller.waits(t, db, "orders", 0, 60)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, value(1), mysqltest.Receive(t, result))
		require.Equal(t, 1, mysqltest.Value[int](t, caller, "SELECT RELEASE_ALL_LOCKS()"))
	})
}

// An account sees through the procedures what it may read itself.
func TestAccounts(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders", "secret")
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')", "INSERT INTO secret (payload) VALUES ('x')")
		on := func(name string) string { return "EXECUTE ON PROCEDURE `" + config.DBName + "`." + name }
		user := open(t, s.User(t, config, "SELECT ON `"+config.DBName+"`.orders", on(routines.Wait), on(routines.WaitFor),
			on(routines.CountTriggers), on(routines.Await), on(routines.Publish), on(routines.Listen), on(routines.Notify)))
		caller := connect(t, user)
		head, err := caller.head(t.Context(), "orders", 0, 0)
		require.NoError(t, err)
		require.Equal(t, value(1), head)
		for _, call := range []string{
			"mqnotify_wait('secret', 0, 0)", "mqnotify_await('orders', 'SELECT MAX(id) FROM secret', 0)", "mqnotify_publish('orders', NULL, 'x')", "mqnotify_publish('secret', NULL, 'x')",
			"mqnotify_listen('x', 0, 0)", "mqnotify_listen('x', NULL, 0)", "mqnotify_notify('x', '')",
		} {
			_, err := caller.ExecContext(t.Context(), "CALL "+call)
			refused(t, err, "42000", "denied")
		}
		// Without the procedure that counts triggers a wait polls.
		poor := connect(t, open(t, s.User(t, config, "SELECT ON `"+config.DBName+"`.orders", on(routines.Wait), on(routines.WaitFor))))
		result := poor.waits(t, db, "orders", 1, 60)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, value(2), mysqltest.Receive(t, result))
	})
}

// The caller's sql_mode and character set make no difference.
func TestModes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, `o"r'd\`+"`ers")
		lead(t, config, `o"r'd\`+"`ers")
		modes := []string{"sql_mode = ''", "sql_mode = 'ANSI_QUOTES'", "sql_mode = 'NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT'",
			"sql_mode = 'ANSI,STRICT_ALL_TABLES'", "NAMES latin1", "completion_type = 'CHAIN'", "group_concat_max_len = 4",
			"SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE"}
		if s.IsMariaDB() {
			modes = append(modes, "sql_mode = 'ORACLE'", "innodb_snapshot_isolation = "+map[bool]string{true: "ON", false: "DEFAULT"}[!strings.Contains(s.Name(), "10.11")])
			modes = slices.DeleteFunc(modes, func(m string) bool { return strings.HasSuffix(m, "DEFAULT") })
		}
		for i, mode := range modes {
			caller := connect(t, db, "SET "+mode)
			var id uint64
			require.NoError(t, caller.QueryRowContext(t.Context(), "CALL mqnotify_publish(?, ?, ?)", `o"r'd\`+"`ers", `{"a":"b"}`, []byte{0, 0xFF, '\\', '\''}).Scan(&id), mode)
			require.Equal(t, uint64(2*i+1), id)
			result := caller.waits(t, db, `o"r'd\`+"`ers", id, 60)
			mysqltest.Exec(t, db.Pool(), "INSERT INTO `o\"r'd\\``ers` (payload) VALUES (?)", []byte{0, 0xFF, '\\', '\''})
			require.Equal(t, value(id+1), mysqltest.Receive(t, result), mode)
		}
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT payload) FROM `o\"r'd\\``ers`"))
	})
}

// No name is taken for SQL.
func TestNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := database(t, s, "orders")
		random := mysqltest.Random(t)
		parts := []string{"orders", "`", "``", "'", `"`, `\`, ";", "--", "/*", "*/", " ", "DROP TABLE orders", "x", ",", ")", "#", "\n", "ö", "%s", "?", "@a", "0x27"}
		for range mysqltest.Size(100, 300, 10_000) {
			var name strings.Builder
			for range 1 + random.IntN(8) {
				name.WriteString(parts[random.IntN(len(parts))])
			}
			if name.String() == "orders" {
				continue
			}
			for _, call := range []string{"CALL mqnotify_wait(?, 0, 0)", "CALL mqnotify_publish(?, NULL, 'x')"} {
				_, err := db.Pool().ExecContext(t.Context(), call, name.String())
				var failed *mysql.MySQLError
				require.ErrorAs(t, err, &failed, name.String())
				require.Contains(t, []uint16{1146, 1103, 1059, 1406}, failed.Number, "%q: %s", name.String(), failed.Message)
			}
			mysqltest.ExecAll(t, db.Pool(), "DO 0")
			_, err := db.Pool().ExecContext(t.Context(), "CALL mqnotify_listen(?, 0, 0)", name.String())
			require.NoError(t, err)
		}
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
	})
}

// notification is a row that mqnotify_listen returns.
type notification struct {
	ID      uint64
	Payload string
}

func (s session) listen(ctx context.Context, name string, after, seconds any) (n notification, err error) {
	var at any
	var payload sql.NullString
	err = s.QueryRowContext(ctx, "CALL mqnotify_listen(?, ?, ?)", name, after, seconds).Scan(&n.ID, &payload, &at)
	if n.Payload = payload.String; !payload.Valid {
		n.Payload = "none"
	}
	return n, err
}

// Notifications come in the order of their ids: one whose transaction is open holds up those after it, and those of other
// names do not.
func TestListen(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, autocommit := range []string{"1", "0"} {
			_, db := database(t, s)
			mysqltest.Exec(t, db.Pool(), "CALL mqnotify_notify('reload', 'before')")
			caller := connect(t, db, "SET autocommit = "+autocommit)
			n, err := caller.listen(t.Context(), "reload", nil, 0)
			require.NoError(t, err)
			require.Equal(t, notification{1, "none"}, n, "the time is over")
			n, err = caller.listen(t.Context(), "reload", 7, 0.1)
			require.NoError(t, err)
			require.Equal(t, notification{7, "none"}, n)
			n, err = caller.listen(t.Context(), "reload", 0, 0)
			require.NoError(t, err)
			require.Equal(t, notification{1, "before"}, n)

			got := mysqltest.Result(func() any {
				n, err := caller.listen(t.Context(), "reload", 1, 60)
				return errors.Join(err, check(n, notification{3, "late"}))
			})
			other := connect(t, db, "START TRANSACTION", "CALL mqnotify_notify('other', '')")
			late := connect(t, db, "START TRANSACTION", "CALL mqnotify_notify('reload', 'late')")
			mysqltest.Exec(t, db.Pool(), "CALL mqnotify_notify('reload', 'v42')")
			mysqltest.Window(t, 300*time.Millisecond)
			require.Empty(t, got, "the one before it is not committed")
			mysqltest.Exec(t, late, "COMMIT")
			require.Nil(t, mysqltest.Receive(t, got))
			n, err = caller.listen(t.Context(), "reload", 3, 0)
			require.NoError(t, err)
			require.Equal(t, notification{4, "v42"}, n)
			mysqltest.Exec(t, other, "ROLLBACK")
		}
	})
}

func check(got, want notification) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

// A notification by mqnotify_notify wakes a listener in Go, and one by Go wakes mqnotify_listen.
func TestNotify(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		far := open(t, config)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		inGo, err := notify.Listen(ctx, far, "reload")
		require.NoError(t, err)
		caller := connect(t, db)
		inSQL := mysqltest.Result(func() any {
			n, err := caller.listen(t.Context(), "reload", 0, 60)
			return errors.Join(err, check(n, notification{1, "v1"}))
		})
		mysqltest.Exec(t, db.Pool(), "CALL mqnotify_notify('reload', 'v1')")
		require.Equal(t, "v1", string(mysqltest.Receive(t, inGo).Payload))
		require.Nil(t, mysqltest.Receive(t, inSQL))
		require.NoError(t, notify.Notify(t.Context(), db, "reload", "v2"))
		n, err := caller.listen(t.Context(), "reload", 1, 60)
		require.NoError(t, err)
		require.Equal(t, notification{2, "v2"}, n)
	})
}

// A message of mqnotify_publish is one of the transaction that calls it, and a consumer in Go reads it.
func TestPublish(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := database(t, s, "orders")
		caller := connect(t, db, "START TRANSACTION", "CALL mqnotify_publish('orders', NULL, 'undone')", "ROLLBACK",
			"START TRANSACTION", `CALL mqnotify_publish('orders', '{"kind":"new"}', 'done')`)
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
		mysqltest.Exec(t, caller, "COMMIT")
		c, err := consumer.New(db, "orders", consumer.Options{From: "beginning", Logger: mysqltest.Logger(t, slog.LevelWarn)})
		require.NoError(t, err)
		got := make(chan consumer.Message, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := mysqltest.Result(func() error {
			return c.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error { got <- m; return nil }))
		})
		m := mysqltest.Receive(t, got)
		require.Equal(t, "done", string(m.Payload))
		require.Equal(t, map[string]string{"kind": "new"}, m.Headers)
		cancel()
		require.NoError(t, mysqltest.Receive(t, ended))
	})
}
