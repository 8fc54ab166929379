package engine

import (
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/schema"
)

// rows returns the rows as text, with "|" between columns and "NULL" for NULL.
func rows(t *testing.T, c *sql.Conn, query string, args ...any) ([]string, error) {
	result, err := c.QueryContext(t.Context(), query, args...)
	if err != nil {
		return nil, err
	}
	defer result.Close()
	all := []string{}
	columns, err := result.Columns()
	if err != nil {
		return nil, err
	}
	for result.Next() {
		values := make([]sql.NullString, len(columns))
		into := make([]any, len(columns))
		for i := range values {
			into[i] = &values[i]
		}
		if err := result.Scan(into...); err != nil {
			return nil, err
		}
		text := make([]string, len(columns))
		for i, v := range values {
			if text[i] = v.String; !v.Valid {
				text[i] = "NULL"
			}
		}
		all = append(all, strings.Join(text, "|"))
	}
	return all, result.Err()
}

// protocols runs f with text and with prepared statements, each on its own engine with mqnotify's tables.
func protocols(t *testing.T, f func(t *testing.T, c *sql.Conn)) {
	for name, interpolate := range map[string]bool{"text": true, "prepared": false} {
		t.Run(name, func(t *testing.T) {
			db := open(t, start(t), func(c *mysql.Config) { c.InterpolateParams, c.MultiStatements = interpolate, true })
			require.NoError(t, schema.Init(t.Context(), db, "or`ders"))
			require.NoError(t, schema.Init(t.Context(), db, "or`ders"))
			f(t, session(t, db))
		})
	}
}

// These are the statements of mqnotify and the engine's answers. Each finds the data that the ones before it left.
func TestStatements(t *testing.T) {
	const largest = uint64(18446744073709551615)
	protocols(t, func(t *testing.T, c *sql.Conn) {
		for _, s := range []struct {
			query string
			args  []any
			want  []string // nil for a statement without rows
			err   int      // the number of the expected error
		}{
			// These are the settings of a session.
			{query: "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"},
			{query: "SET SESSION autocommit = 1, time_zone = '+00:00', lock_wait_timeout = 2, innodb_lock_wait_timeout = 2, " +
				"long_query_time = 3600, max_execution_time = 0, wait_timeout = 30"},
			{query: "SELECT @@transaction_isolation, @@time_zone, @@innodb_lock_wait_timeout, @@auto_increment_increment, @@read_only",
				want: []string{"READ-COMMITTED|+00:00|2|1|0"}},
			{query: "SHOW SESSION VARIABLES WHERE Variable_name IN ('gtid_mode', 'wsrep_on', 'performance_schema')",
				want: []string{"gtid_mode|OFF", "performance_schema|0"}},
			{query: "SELECT @@max_statement_time", err: 1105}, // 1193 on MySQL

			// The table is empty, then has rows with any bytes and with any id.
			{query: "SELECT MAX(id), COALESCE(MAX(id), 0) FROM `or``ders`", want: []string{"NULL|0"}},
			{query: "SELECT NOT ((SELECT MAX(id) FROM `or``ders`) <=> ?)", args: []any{nil}, want: []string{"0"}},
			{query: "INSERT INTO `or``ders` (headers, payload) VALUES (?, ?), (?, ?)", args: []any{nil, []byte{0, 255, '\'', '\\'}, `{"a":"b"}`, []byte{}}},
			{query: "SELECT LAST_INSERT_ID()", want: []string{"1"}},
			{query: "SELECT id, headers, HEX(payload) FROM `or``ders` WHERE id > ? ORDER BY id LIMIT ?", args: []any{uint64(0), 5},
				want: []string{"1|NULL|00FF275C", "2|{\"a\": \"b\"}|"}},
			{query: "INSERT INTO `or``ders` (id, payload) VALUES (?, 'x')", args: []any{largest - 1}},
			{query: "SELECT id FROM `or``ders` WHERE (id BETWEEN ? AND ? OR id BETWEEN ? AND ?) ORDER BY id DESC LIMIT 2", args: []any{1, 2, uint64(9), largest},
				want: []string{fmt.Sprint(largest - 1), "2"}},
			{query: "SELECT NOT ((SELECT MAX(id) FROM `or``ders`) <=> ?)", args: []any{largest - 1}, want: []string{"0"}},
			{query: "DELETE FROM `or``ders` WHERE id > 2"},

			// These statements use the flag.
			{query: "INSERT INTO mqnotify_flag (topic, counter) VALUES (?, 1) ON DUPLICATE KEY UPDATE counter = counter + 1", args: []any{"t"}},
			{query: "INSERT INTO mqnotify_flag (topic, counter) VALUES (?, 1) ON DUPLICATE KEY UPDATE counter = counter + 1", args: []any{"t"}},
			{query: "INSERT INTO mqnotify_flag (topic, counter) VALUES (?, 1) ON DUPLICATE KEY UPDATE counter = counter + 1", args: []any{"T"}},
			{query: "INSERT IGNORE INTO mqnotify_flag (topic, counter) VALUES (?, 7)", args: []any{"t"}},
			{query: "INSERT INTO mqnotify_flag (topic, counter) VALUES (?, 7)", args: []any{"t"}, err: 1062},
			{query: "SELECT (SELECT counter FROM mqnotify_flag WHERE topic = ?)", args: []any{"t"}, want: []string{"2"}},
			{query: "DELETE FROM mqnotify_flag WHERE topic = ?", args: []any{"t"}},
			{query: "SELECT (SELECT counter FROM mqnotify_flag WHERE topic = ?)", args: []any{"t"}, want: []string{"NULL"}},

			// These statements describe a table.
			{query: "SELECT ENGINE, TABLE_TYPE, AUTO_INCREMENT FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ?", args: []any{"demo", "mqnotify_dead_letter"},
				want: []string{"InnoDB|BASE TABLE|NULL"}},
			{query: "SELECT COLUMN_NAME, COLUMN_TYPE, COLUMN_KEY, EXTRA FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY ORDINAL_POSITION", args: []any{"demo", "or`ders"},
				want: []string{"id|bigint unsigned|PRI|auto_increment", "created_at|timestamp(6)||DEFAULT_GENERATED", "headers|json||", "payload|longblob||"}},
			{query: "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME FROM information_schema.STATISTICS WHERE TABLE_SCHEMA = ? AND TABLE_NAME = ? ORDER BY INDEX_NAME, SEQ_IN_INDEX", args: []any{"demo", "mqnotify_dead_letter"},
				want: []string{"message|0|topic", "message|0|group_name", "message|0|message_id", "PRIMARY|0|id"}},
			{query: "SELECT * FROM nowhere", err: 1146},

			// The engine can't report the open writers.
			{query: "SELECT * FROM performance_schema.metadata_locks", err: 1049},
			{query: "SELECT trx_id FROM information_schema.innodb_trx", want: []string{}},
			{query: "SELECT 1 FROM `or``ders` WHERE id = ? FOR SHARE NOWAIT", args: []any{1}, err: 1105}, // a syntax error
			{query: "SELECT id FROM `or``ders` WHERE id = ? FOR UPDATE", args: []any{1}, want: []string{"1"}},
		} {
			got, err := rows(t, c, s.query, s.args...)
			require.Equal(t, s.err, number(err), "%s: %v", s.query, err)
			if s.err == 0 {
				require.NoError(t, err, s.query)
			}
			if s.want != nil {
				require.Equal(t, s.want, got, s.query)
			}
		}
	})
}

func TestCreatedAtHasMicrosecondsOfUTC(t *testing.T) {
	protocols(t, func(t *testing.T, c *sql.Conn) {
		_, err := c.ExecContext(t.Context(), "SET time_zone = '+00:00'")
		require.NoError(t, err)
		fractions := false
		for range 10 { // ten, because one row in a million has no fraction
			_, err = c.ExecContext(t.Context(), "INSERT INTO `or``ders` (payload) VALUES ('x')")
			require.NoError(t, err)
		}
		got, err := rows(t, c, "SELECT created_at FROM `or``ders` WHERE id > ?", 0)
		require.NoError(t, err)
		require.Len(t, got, 10)
		for _, text := range got {
			at, err := time.Parse("2006-01-02 15:04:05.999999", text)
			require.NoError(t, err)
			require.WithinDuration(t, time.Now(), at, time.Minute)
			fractions = fractions || at.Nanosecond() != 0
		}
		require.True(t, fractions, "%v", got)
	})
}

// Only the member that holds the fence moves the offset of a group.
func TestAffectedRowsOfTheFence(t *testing.T) {
	protocols(t, func(t *testing.T, c *sql.Conn) {
		affected := func(query string, args ...any) int64 {
			result, err := c.ExecContext(t.Context(), query, args...)
			require.NoError(t, err)
			n, err := result.RowsAffected()
			require.NoError(t, err)
			return n
		}
		require.Equal(t, int64(1), affected("INSERT INTO mqnotify_offset (topic, group_name, settled, delivered, fence, version, member)"+
			" VALUES (?, ?, ?, ?, UUID_SHORT(), 0, ?)", "t", "g", uint64(1), []byte{}, "m"))
		var fence uint64
		require.NoError(t, c.QueryRowContext(t.Context(), "SELECT fence FROM mqnotify_offset WHERE topic = ? AND group_name = ?", "t", "g").Scan(&fence))
		const move = "UPDATE mqnotify_offset SET settled = ?, version = version + 1 WHERE topic = ? AND group_name = ? AND fence = ?"
		require.Equal(t, int64(1), affected(move, uint64(5), "t", "g", fence))
		require.Equal(t, int64(1), affected(move, uint64(5), "t", "g", fence))
		require.Equal(t, int64(1), affected("UPDATE mqnotify_offset SET fence = fence + 1 WHERE topic = ? AND group_name = ?", "t", "g"))
		require.Equal(t, int64(0), affected(move, uint64(6), "t", "g", fence))
	})
}

func TestTriggersSetTheFlag(t *testing.T) {
	protocols(t, func(t *testing.T, c *sql.Conn) {
		trigger, err := schema.Trigger("or`ders", schema.TriggerCounter, "INSERT")
		require.NoError(t, err)
		_, err = c.ExecContext(t.Context(), trigger)
		require.NoError(t, err)
		_, err = c.ExecContext(t.Context(), "INSERT INTO `or``ders` (payload) VALUES ('x'), ('y')")
		require.NoError(t, err)
		got, err := rows(t, c, "SELECT topic, counter FROM mqnotify_flag")
		require.NoError(t, err)
		require.Equal(t, []string{"or`ders|2"}, got)
	})
}

// The gate's waiter sends two statements in one packet, both with arguments.
func TestTwoStatementsInOnePacket(t *testing.T) {
	db := open(t, start(t), func(c *mysql.Config) { c.MultiStatements = true })
	c := session(t, db)
	require.NoError(t, schema.Init(t.Context(), db, "orders"))
	for _, seen := range []struct {
		head any
		want string
	}{{nil, "1|1"}, {5, "2|0"}} {
		got, err := rows(t, c, "SET @moved = NOT ((SELECT MAX(id) FROM orders) <=> ?); "+
			"SELECT IF(@moved, 2, GET_LOCK(?, ?)), IF(@moved, 0, RELEASE_LOCK(?))", seen.head, "phase", 1, "phase")
		require.NoError(t, err)
		require.Equal(t, []string{seen.want}, got)
	}
}
