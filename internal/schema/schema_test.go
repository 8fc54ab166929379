package schema

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// structure returns everything that the server knows of the database's tables, as text.
func structure(tb testing.TB, db *sql.DB) string {
	tb.Helper()
	var all strings.Builder
	for _, query := range []string{
		`SELECT TABLE_NAME, ENGINE, TABLE_COLLATION, TABLE_TYPE FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1`,
		`SELECT TABLE_NAME, ORDINAL_POSITION, COLUMN_NAME, COLUMN_DEFAULT, IS_NULLABLE, COLUMN_TYPE, COLLATION_NAME, EXTRA
		FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1, 2`,
		`SELECT TABLE_NAME, INDEX_NAME, SEQ_IN_INDEX, NON_UNIQUE, COLUMN_NAME FROM information_schema.STATISTICS
		WHERE TABLE_SCHEMA = DATABASE() ORDER BY 1, 2, 3`,
		`SELECT CONCAT('version ', version) FROM ` + VersionTable + ` ORDER BY version`,
	} {
		rows, err := db.QueryContext(context.Background(), query)
		require.NoError(tb, err)
		defer rows.Close()
		columns, err := rows.Columns()
		require.NoError(tb, err)
		values, into := make([]sql.NullString, len(columns)), make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		for rows.Next() {
			require.NoError(tb, rows.Scan(into...))
			fmt.Fprintf(&all, "%v\n", values)
		}
		require.NoError(tb, rows.Err())
	}
	return all.String()
}

// state are the tables that Init creates, whatever the topics are.
var state = []string{
	FlagTable, OffsetTable, DeadLetterTable, RetryTable, OriginTable, VersionTable,
	OnceTable, ClaimTable, IntervalTable, RowMutexTable, FlagMutexTable, LeaseTable,
}

func TestInit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, Init(t.Context(), db, odd...))
		once := structure(t, db)
		for _, name := range slices.Concat(state, odd) {
			assert.Contains(t, once, "{"+name+" true}")
			assert.Equal(t, "0", text(t, db, "SELECT COUNT(*) FROM "+ident.Quote(name)+" WHERE 1 = 0"))
		}

		// Existing tables stay: their rows, and changes by their owner.
		exec(t, db, "INSERT INTO orders (payload) VALUES ('a message')")
		exec(t, db, "ALTER TABLE orders ADD extra INT")
		changed := structure(t, db)
		require.NotEqual(t, once, changed)
		require.NoError(t, Init(t.Context(), db, odd...))
		assert.Equal(t, changed, structure(t, db))
		assert.Equal(t, "1", text(t, db, "SELECT COUNT(*) FROM orders"))

		// A plain insert is a message, because all other columns have defaults.
		assert.Equal(t, "1 a message 1 1", text(t, db, `SELECT CONCAT_WS(' ', id, payload, headers IS NULL,
			ABS(TIMESTAMPDIFF(SECOND, created_at, CURRENT_TIMESTAMP(6))) < 60) FROM orders`))
	})
}

// Where COMPACT is the default row format, a key may have 767 bytes at most.
func TestInitCompact(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Start(t, "--innodb-default-row-format=compact").Database(t))
		require.NoError(t, Init(t.Context(), db, "orders"))
		assert.Equal(t, "Compact", text(t, db, "SELECT ROW_FORMAT FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'orders'"))
	})
}

func TestInitAtOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		want := open(t, s.Database(t))
		require.NoError(t, Init(t.Context(), want, "orders", "invoices"))
		for range 5 {
			db := open(t, s.Database(t))
			var all sync.WaitGroup
			for range 8 {
				all.Go(func() { assert.NoError(t, Init(t.Context(), db, "orders", "invoices")) })
			}
			all.Wait()
			assert.Equal(t, structure(t, want), structure(t, db))
		}
	})
}

// An administrator who runs the script gets the same tables as from Init.
func TestScript(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		want := open(t, s.Database(t))
		require.NoError(t, Init(t.Context(), want, odd...))

		script, err := Script(odd...)
		require.NoError(t, err)
		config := s.Database(t)
		config.MultiStatements = true // the server finds the statements' ends, as it does for a client
		db := open(t, config)
		for range 2 {
			exec(t, db, script)
			assert.Equal(t, structure(t, want), structure(t, db))
		}
		require.NoError(t, Init(t.Context(), db, odd...))
		assert.Equal(t, structure(t, want), structure(t, db))
	})
}

// A name never reaches a comment, where a line break would end it.
func TestCommentsNameNothing(t *testing.T) {
	const table = "ÄÖÜ\nDROP TABLE b;"
	script, err := Script(table)
	require.NoError(t, err)
	for _, form := range []TriggerForm{TriggerCounter, TriggerRow} {
		trigger, err := Trigger(table, form, "insert")
		require.NoError(t, err)
		script += trigger
	}
	assert.Contains(t, script, ident.Quote(table))
	for line := range strings.Lines(script) {
		assert.False(t, strings.HasPrefix(line, "--") && strings.Contains(line, "ÄÖÜ"), line)
	}
}

// Every migration is applied once, in order, and recorded.
func TestMigrations(t *testing.T) {
	all := migrations()
	require.NotEmpty(t, all)
	for i, m := range all {
		assert.Equal(t, i, m.version, "numbers without a gap: %s", m.name)
		assert.NotEmpty(t, m.statements, m.name)
		for _, statement := range m.statements {
			assert.NotContains(t, statement, ";", "one statement each")
			assert.Regexp(t, "^mqnotify_[a-z_]+$", TableOf(statement))
			assert.True(t, strings.HasPrefix(statement, createTable), "it may run twice: %s", statement)
		}
	}
	assert.Equal(t, all[len(all)-1].version, Newest())

	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		require.NoError(t, Init(t.Context(), db))
		exec(t, db, "DROP TABLE "+FlagTable)
		require.NoError(t, Init(t.Context(), db))
		assert.Contains(t, structure(t, db), FlagTable, "it makes a table that is missing")
		exec(t, db, "DROP TABLE "+FlagTable)
		exec(t, db, "DELETE FROM "+VersionTable)
		require.NoError(t, Init(t.Context(), db))
		assert.Contains(t, structure(t, db), FlagTable)
		assert.Equal(t, fmt.Sprint(Newest()), text(t, db, "SELECT MAX(version) FROM "+VersionTable))
	})
}

func TestStatements(t *testing.T) {
	assert.Equal(t, []string{"A\n  b", "C;D"}, statements("-- a; comment\nA\n-- another; one\n  b;\n\nC;D;\n-- the end\n"))
	assert.Empty(t, statements("-- nothing\n;\n"))
}

// Statements are those of Init, each of a table that TableOf tells.
func TestTableOf(t *testing.T) {
	var tables []string
	for _, statement := range Statements() {
		table := TableOf(statement)
		require.Regexp(t, "^mqnotify_[a-z_]+$", table)
		tables = append(tables, table)
	}
	assert.Subset(t, tables, []string{VersionTable, FlagTable})
	assert.NotContains(t, tables, "")
}

func TestInitRefusals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		for _, name := range []string{"", "orders ", strings.Repeat("x", 65), "a\x00b", "a😀"} {
			var invalid *ident.InvalidError
			require.ErrorAs(t, Init(t.Context(), db, "orders", name), &invalid, "%q", name)
			_, err := Script("orders", name)
			require.ErrorAs(t, err, &invalid, "%q", name)
			_, err = Trigger(name, TriggerRow, "insert")
			require.ErrorAs(t, err, &invalid, "%q", name)
		}
		assert.Equal(t, "0", text(t, db, "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE()"),
			"checked before anything is made")

		// The error of every step says what was not done.
		var failure *mysql.MySQLError
		reader := s.User(t, config, "SELECT ON "+config.DBName+".*")
		err := Init(t.Context(), open(t, reader), "orders")
		require.ErrorAs(t, err, &failure)
		require.ErrorContains(t, err, "schema: apply 0000_schema.sql: ")

		exec(t, db, "CREATE TABLE "+VersionTable+" (other INT)")
		err = Init(t.Context(), db)
		require.ErrorAs(t, err, &failure)
		require.ErrorContains(t, err, "schema: read the version: ")
		exec(t, db, "DROP TABLE "+VersionTable)

		creator := s.User(t, config, "CREATE, REFERENCES, SELECT ON "+config.DBName+".*")
		err = Init(t.Context(), open(t, creator), "orders")
		require.ErrorAs(t, err, &failure)
		require.ErrorContains(t, err, "schema: note version 1: ")

		writer := s.User(t, config, "CREATE, REFERENCES, SELECT, INSERT ON "+config.DBName+".*")
		require.NoError(t, Init(t.Context(), open(t, writer), "orders"))
		reader = s.User(t, config, "SELECT ON "+config.DBName+".*", "CREATE ON "+config.DBName+"."+VersionTable)
		err = Init(t.Context(), open(t, reader), "invo`ices")
		require.ErrorAs(t, err, &failure)
		require.ErrorContains(t, err, "schema: make topic `invo``ices`: ")
	})
}
