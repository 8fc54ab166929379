package main

import (
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestInit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		for range 2 {
			require.Empty(t, succeed(t, config, "init", "orders", "a`b c"))
		}
		mysqltest.Exec(t, db, "INSERT INTO `a``b c` (payload) VALUES ('any program''s')")
		require.Equal(t, "any program's\n", succeed(t, config, "consume", "a`b c", "--group", "g", "--from", "beginning",
			"--stop-at-end", "--format", "payload"))

		mysqltest.Exec(t, db, "CREATE TABLE taken (id INT PRIMARY KEY)")
		r := mqnotify(t, config, "", "init", "taken")
		require.Equal(t, exitDone, r.code)
		require.Contains(t, r.err, "level=WARN")
		require.Equal(t, []string{"id"}, mysqltest.Values[string](t, db, "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'taken'"))
	})
}

// The SQL that --print prints makes the same database, in any client.
func TestInitPrint(t *testing.T) {
	script := succeed(t, nil, "init", "--print", "orders", "--trigger", "orders", "--trigger-on", "insert,update")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		client := config.Clone()
		client.MultiStatements = true
		mysqltest.Exec(t, open(t, client), script)
		db := open(t, config)
		require.Equal(t, []string{"mqnotify_insert_orders", "mqnotify_update_orders"},
			mysqltest.Values[string](t, db, "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE() ORDER BY 1"))
		printed := tables(t, db)
		require.Empty(t, succeed(t, config, "init", "orders", "--trigger", "orders", "--trigger-on", "insert,update"))
		require.Equal(t, printed, tables(t, db))

		other := s.Database(t)
		succeed(t, other, "init", "orders", "--trigger", "orders", "--trigger-on", "insert,update")
		require.Equal(t, printed, tables(t, open(t, other)))
	})
}

// tables returns the tables of the database with their columns.
func tables(tb testing.TB, db *sqlx.DB) []string {
	tb.Helper()
	return mysqltest.Values[string](tb, db, `SELECT CONCAT_WS(' ', TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, IS_NULLABLE, COLUMN_DEFAULT, EXTRA)
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() ORDER BY TABLE_NAME, ORDINAL_POSITION`)
}

// init makes the procedures for programs in other languages, replaces changed ones, and drops them with --remove.
func TestInitProcedures(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		procedures := func() []string {
			return mysqltest.Values[string](t, db, "SELECT CONCAT(ROUTINE_NAME, ' ', SECURITY_TYPE, ' ', ROUTINE_DEFINITION) FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = DATABASE() ORDER BY ROUTINE_NAME")
		}
		require.Contains(t, mqnotify(t, config, "", "init", "orders").err, "the procedures are ready")
		all := procedures()
		require.Len(t, all, 10)
		var definers []string
		for _, p := range all {
			if strings.Contains(p, " DEFINER ") {
				definers = append(definers, strings.Fields(p)[0])
			}
		}
		require.Equal(t, []string{"mqnotify_count_triggers", "mqnotify_open_writers", "mqnotify_wake", "mqnotify_wake_tables"}, definers)
		for _, statement := range []string{"DROP PROCEDURE mqnotify_wait", "CREATE PROCEDURE mqnotify_wait(topic TEXT, after_id INT, seconds INT) SELECT 'an older version'"} {
			mysqltest.Exec(t, db, statement)
		}
		require.Contains(t, mqnotify(t, config, "", "init").err, "the procedures are ready")
		require.NotContains(t, mqnotify(t, config, "", "init").err, "procedures")
		require.Equal(t, all, procedures())

		for _, wrong := range [][]string{{"init", "--remove", "orders"}, {"init", "--remove", "--no-trigger"}} {
			require.Equal(t, exitUsage, mqnotify(t, config, "", wrong...).code)
		}
		require.Equal(t, 7, strings.Count(mqnotify(t, config, "", "init", "--remove").err, "is dropped"))
		require.Len(t, procedures(), 3)
		require.Contains(t, mqnotify(t, config, "", "init", "--remove").err, "there is no procedure to drop")
		succeed(t, config, "init", "--no-trigger")
		require.Equal(t, all, procedures())
	})
}

// An older mqnotify changes nothing in a database of a newer one.
func TestInitNewer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		succeed(t, config, "init")
		mysqltest.Exec(t, open(t, config), "INSERT INTO mqnotify_schema (version) VALUES (99)")
		r := mqnotify(t, config, "", "init", "orders")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, "version 99")
		require.Contains(t, r.err, "update mqnotify")
		require.Empty(t, mysqltest.Values[string](t, open(t, config), "SHOW TABLES LIKE 'orders'"))
	})
}

// init refuses names that begin with a dash, because other commands would take them for flags.
func TestInitRefusesNamesLikeFlags(t *testing.T) {
	require.Contains(t, fail(t, exitUsage, nil, "init", "--", "-x"), `named "-x" would be taken for a flag`)
	require.Contains(t, fail(t, exitUsage, nil, "init", "--queue=-mail"), `named "-mail"`)
}

func TestInitRefusesNames(t *testing.T) {
	for _, name := range []string{"", strings.Repeat("x", 65), "a\x00b", "ends in a space "} {
		require.Contains(t, fail(t, exitUsage, nil, "init", "--print", name), "name ")
	}
}
