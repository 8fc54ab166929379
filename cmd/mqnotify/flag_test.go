package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestFlag(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		require.Equal(t, "0\n", succeed(t, config, "flag", "orders"))
		succeed(t, config, "produce", "orders", "x")
		require.Equal(t, "0\n", succeed(t, config, "flag", "orders"), "only produce --set-flag sets the flag")
		succeed(t, config, "produce", "orders", "x", "--set-flag")
		succeed(t, config, "produce", "orders", "x", "--set-flag")
		require.Equal(t, "2\n", succeed(t, config, "flag", "orders"))
		require.Equal(t, "2\n", succeed(t, config, "flag", "orders", "--reset"))
		require.Equal(t, "0\n", succeed(t, config, "flag", "orders", "--reset"))

		require.Contains(t, fail(t, exitFailed, config, "flag", "order"), "did you mean `orders`")
		mysqltest.Exec(t, db, "DROP TABLE mqnotify_flag")
		require.Contains(t, fail(t, exitFailed, config, "flag", "orders"), "mqnotify init")
	})
}

// Triggers set the flag, in both forms, for programs that do not set it.
func TestTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		for form, want := range map[string]string{"counter": "4\n", "row": "1\n"} {
			table := "it's \\" + form
			quoted := "`" + table + "`"
			mysqltest.Exec(t, db, "CREATE TABLE "+quoted+" (id INT PRIMARY KEY)")
			init := []string{"init", "--trigger", table, "--trigger-on", "insert,DELETE", "--trigger-form", form}
			require.Empty(t, succeed(t, config, init...))
			require.Empty(t, succeed(t, config, init...), "a second run changes nothing")
			mysqltest.Exec(t, db, "INSERT INTO "+quoted+" VALUES (1), (2), (3)")
			mysqltest.Exec(t, db, "UPDATE "+quoted+" SET id = 4 WHERE id = 3")
			mysqltest.Exec(t, db, "DELETE FROM "+quoted+" WHERE id = 1")
			require.Equal(t, want, succeed(t, config, "flag", table, "--reset"))
			require.Equal(t, "0\n", succeed(t, config, "flag", table))
		}
	})
}

func TestTriggersFail(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, "CREATE VIEW v AS SELECT * FROM orders")
		require.Contains(t, fail(t, exitFailed, config, "status", "nosuch"), "`mqnotify init` makes a new topic")
		for _, command := range []string{"init --trigger", "flag", "capture install", "wake install"} { // an empty message table would not help
			said := fail(t, exitFailed, config, append(words(command), "nosuch")...)
			require.Contains(t, said, "no table `nosuch`")
			require.NotContains(t, said, "mqnotify init")
		}
		require.Contains(t, fail(t, exitFailed, config, "init", "--trigger", "v"), "is a view")
		require.Contains(t, fail(t, exitUsage, config, "init", "--trigger", "orders", "--trigger-form", "both"), "counter")
		require.Contains(t, fail(t, exitUsage, config, "init", "--trigger", "orders", "--trigger-on", "select"), "insert, update or delete")
		succeed(t, config, "init", "--trigger", "orders")
		require.Contains(t, fail(t, exitFailed, config, "init", "--trigger", "orders", "--trigger-form", "row"), "DROP TRIGGER `mqnotify_insert_orders`")
	})
}

// While a transaction uses the table, init --trigger tries for a short time at once. Ctrl-C leaves no statement that waits for the
// table.
func TestTriggersOfBusyTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "INSERT INTO orders (payload) VALUES ('x')")
		waits := func() bool {
			return mysqltest.Value[int](t, db, `SELECT COUNT(*) FROM information_schema.PROCESSLIST
				WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO LIKE '%CREATE TRIGGER%' AND STATE LIKE '%metadata lock%'`) > 0
		}
		r := background(t, config, "init", "--trigger", "orders")
		mysqltest.Eventually(t, "the statement waits for the table", waits)
		require.Equal(t, exitFailed, r.interrupt(t).code)
		require.False(t, waits())
		r = background(t, config, "init", "--trigger", "orders")
		mysqltest.Eventually(t, "the statement waits for the table", waits)
		require.NoError(t, tx.Commit())
		require.Equal(t, exitDone, r.wait(t).code)
		succeed(t, config, "produce", "orders", "y")
		require.Equal(t, "1\n", succeed(t, config, "flag", "orders"))
	})
}
