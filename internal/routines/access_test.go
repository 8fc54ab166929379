package routines_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/routines"
)

// refused checks that a call failed with this SQLSTATE, and that the message contains the word.
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
				if c.state == "" && caller == callers[0] { // the state differs between servers
					require.ErrorContains(t, err, c.word, c.call)
				}
				if c.state != "" {
					t.Log(c.call, err)
					refused(t, err, c.state, c.word)
				}
			}
		}
		_, err := connect(t, db, "SET timestamp = 1000000000").ExecContext(t.Context(), "CALL mqnotify_wait('orders', 0, 1)")
		refused(t, err, "22023", "clock") // it would wait without end
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE small LIKE orders", "ALTER TABLE small MODIFY payload VARBINARY(5) NOT NULL")
		for _, caller := range callers {
			_, err := caller.ExecContext(t.Context(), "CALL mqnotify_publish('small', NULL, 'too long')")
			refused(t, err, "22001", "payload")
		}
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_notification"))
	})
}

// Through the procedures an account can do only what its own privileges allow.
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
		// A wait polls if the account may not execute the procedure that counts triggers.
		poor := connect(t, open(t, s.User(t, config, "SELECT ON `"+config.DBName+"`.orders", on(routines.Wait), on(routines.WaitFor))))
		result := poor.waits(t, db, "orders", 1, 60)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, value(2), mysqltest.Receive(t, result))
	})
}

// The procedures work under every sql_mode, character set and isolation level of the caller.
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
		begun := time.Now()
		head, err := connect(t, db, "SET div_precision_increment = 0").head(t.Context(), `o"r'd\`+"`ers", 1000, 0.4)
		require.NoError(t, err)
		require.False(t, head.Valid)
		require.GreaterOrEqual(t, time.Since(begun), 400*time.Millisecond, "a part of a second is not rounded away")
	})
}

// No name is run as SQL.
func TestNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := database(t, s, "orders")
		random := mysqltest.Random(t)
		parts := []string{"orders", "`", "``", "'", `"`, `\`, ";", "--", "/*", "*/", " ", "DROP TABLE orders", "x", ",", ")", "#", "\n", "ö", "%s", "?", "@a", "0x27"}
		for range mysqltest.Many(100, 150, 10_000) {
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
				require.Contains(t, []uint16{1146, 1103, 1059, 1644}, failed.Number, "%q: %s", name.String(), failed.Message)
			}
			mysqltest.ExecAll(t, db.Pool(), "DO 0")
			_, err := db.Pool().ExecContext(t.Context(), "CALL mqnotify_listen(?, 0, 0)", name.String())
			require.NoError(t, err)
		}
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
	})
}
