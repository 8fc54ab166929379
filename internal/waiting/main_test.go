package waiting_test

import (
	"context"
	"database/sql"
	"log/slog"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

func TestMain(m *testing.M) {
	waiting.Unused = 2 * time.Second
	mysqltest.AsProcess(listenerEnv, listenerMain)
	mysqltest.Main(m)
}

func open(tb testing.TB, config *mysql.Config) *sql.DB {
	tb.Helper()
	config = config.Clone()
	config.InterpolateParams = true
	connector, err := mysql.NewConnector(config)
	require.NoError(tb, err)
	db := sql.OpenDB(connector)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// makeTopic creates a table, the routine, and the trigger if asked to.
func makeTopic(tb testing.TB, db *sql.DB, config *mysql.Config, table string, trigger bool) {
	tb.Helper()
	for _, r := range waiting.Routines(config.DBName) {
		mysqltest.Exec(tb, db, "DROP PROCEDURE IF EXISTS "+r.Name)
		mysqltest.Exec(tb, db, r.Statement)
	}
	mysqltest.Exec(tb, db, schema.Topic(table))
	if trigger {
		statement, err := waiting.Trigger(config.DBName, table, "insert")
		require.NoError(tb, err)
		mysqltest.Exec(tb, db, statement)
	}
}

func topicOf(table string) waiting.Topic {
	table = ident.Quote(table)
	return waiting.Topic{
		Table: table[1 : len(table)-1],
		Head:  "SELECT MAX(id) FROM " + table,
		CommitWait: "SELECT id FROM " + table + " WHERE id = (SELECT MAX(id) FROM " + table +
			" WHERE id > ?) LOCK IN SHARE MODE",
	}
}

// listen returns a listener in a process of its own.
func listen(tb testing.TB, config *mysql.Config, table string) *waiting.Listener {
	tb.Helper()
	w := waiting.New(config, mysqltest.Logger(tb, slog.LevelDebug))
	l := w.Listen(topicOf(table))
	tb.Cleanup(func() { require.NoError(tb, l.Close()) })
	return l
}

// ready waits until every commit brings a hint. On a loaded machine the first attempt to lead may fail.
func ready(tb testing.TB, l *waiting.Listener) {
	tb.Helper()
	mysqltest.Eventually(tb, "every commit brings a hint", func() bool { return l.Ready(tb.Context()) == nil })
}

// sleeps waits until every process that listens at the gate of the table can be woken by its trigger, and has nothing else
// to do.
func sleeps(tb testing.TB, l *waiting.Listener) {
	tb.Helper()
	mysqltest.Eventually(tb, "the process sleeps", l.Sleeps)
}

func TestWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		leader, follower := listen(t, config, "orders"), listen(t, config, "orders")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		head, err := leader.Head(ctx)
		require.NoError(t, err)
		head2, err := follower.Head(ctx)
		require.NoError(t, err)
		require.Equal(t, head, head2)
		for range 20 {
			sleeps(t, leader)
			sleeps(t, follower)
			begun := time.Now()
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
			committed := time.Now()
			head, err = leader.Wait(ctx, head, time.Minute)
			require.NoError(t, err)
			one := time.Since(committed)
			head2, err = follower.Wait(ctx, head2, time.Minute)
			require.NoError(t, err)
			require.Equal(t, head, head2)
			t.Log(committed.Sub(begun), one, time.Since(committed), head.V)
		}
	})
}
