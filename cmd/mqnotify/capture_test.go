package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A change by plain SQL comes to a consumer as a message, until the capture is removed.
func TestCaptureCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)")
		require.Equal(t, nothingCaptured+"\n", succeed(t, config, "capture", "status"))
		require.Empty(t, succeed(t, config, "capture", "install", "stock"))
		mysqltest.Exec(t, db, "INSERT INTO stock VALUES (1, 5)")
		mysqltest.Exec(t, db, "UPDATE stock SET pieces = 4")
		require.Equal(t, `{"op":"insert","table":"stock","old":null,"new":{"id":1,"pieces":5}}`+"\n"+
			`{"op":"update","table":"stock","old":{"id":1,"pieces":5},"new":{"id":1,"pieces":4}}`+"\n",
			succeed(t, config, "consume", "stock_changes", "--from", "beginning", "--stop-at-end", "--format", "payload"))

		require.Contains(t, fail(t, exitFailed, config, "capture", "install", "stock"), "`mqnotify_capture_insert_stock` stands already")
		mysqltest.Exec(t, db, "ALTER TABLE stock ADD place TEXT")
		lines := strings.Split(succeed(t, config, "capture", "status", "stock"), "\n")
		require.Len(t, lines, 5)
		assert.Equal(t, []string{"stock", "insert", "stock_changes", "2", "without", "place"}, strings.Fields(lines[1]))
		assert.Contains(t, succeed(t, config, "capture", "status", "--json"), `"missed":["place"]`)
		mysqltest.Exec(t, db, "ALTER TABLE stock MODIFY pieces VARCHAR(5)")
		r := mqnotify(t, config, "", "capture", "status")
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, "STALE: pieces from int")
		assert.Contains(t, r.err, "mqnotify capture repair stock")
		succeed(t, config, "capture", "repair", "stock", "--without", "place")
		assert.Contains(t, succeed(t, config, "capture", "status"), "without place")
		mysqltest.Exec(t, db, "CREATE TABLE stock_new LIKE stock")
		mysqltest.Exec(t, db, "RENAME TABLE stock TO stock_old, stock_new TO stock")
		r = mqnotify(t, config, "", "capture", "status", "stock")
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, "MOVED: made for stock")
		assert.Contains(t, fail(t, exitFailed, config, "capture", "install", "stock"), "mqnotify capture repair stock")
		succeed(t, config, "capture", "repair", "stock")
		succeed(t, config, "capture", "status")
		mysqltest.Exec(t, db, "DROP TABLE stock_changes")
		r = mqnotify(t, config, "", "capture", "status")
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, "BROKEN: no topic stock_changes")

		succeed(t, config, "capture", "remove", "stock")
		require.Equal(t, nothingCaptured+"\n", succeed(t, config, "capture", "status"))
		require.Equal(t, exitDone, mqnotify(t, config, "", "capture", "remove", "stock").code)
	})
}

// What --print prints makes the same triggers; it is for a client that heeds DELIMITER.
func TestCapturePrint(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)")
		script := succeed(t, config, "capture", "install", "stock", "--ops", "insert,UPDATE", "--print")
		const triggers = `SELECT CONCAT_WS('|', TRIGGER_NAME, ACTION_STATEMENT, SQL_MODE) FROM information_schema.TRIGGERS
			WHERE TRIGGER_SCHEMA = DATABASE() ORDER BY 1`
		require.Empty(t, mysqltest.Values[string](t, db, triggers), "nothing is made")
		plain, delimited, found := strings.Cut(script, "DELIMITER //\n")
		require.True(t, found)
		client := config.Clone()
		client.MultiStatements = true
		conn, err := open(t, client).Connx(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		statements := append([]string{plain}, strings.Split(strings.TrimSuffix(delimited, "DELIMITER ;\n"), "//\n")...)
		for _, statement := range statements {
			if strings.TrimSpace(statement) != "" {
				_, err := conn.ExecContext(t.Context(), statement)
				require.NoError(t, err, statement)
			}
		}
		printed := mysqltest.Values[string](t, db, triggers)
		require.Len(t, printed, 2)
		succeed(t, config, "capture", "remove", "stock")
		succeed(t, config, "capture", "install", "stock", "--ops", "insert,UPDATE")
		require.Equal(t, printed, mysqltest.Values[string](t, db, triggers))
	})
}

// A pattern is all tables that match it, but for those that can't be captured, or are already; foreign keys that cascade are warned of.
func TestCapturePattern(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		for _, statement := range []string{
			"CREATE TABLE shop_orders (id INT PRIMARY KEY)", "CREATE VIEW shop_view AS SELECT * FROM shop_orders", "CREATE TABLE other (id INT)",
			"CREATE TABLE shop_items (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES shop_orders (id) ON DELETE CASCADE)",
		} {
			mysqltest.Exec(t, db, statement)
		}
		succeed(t, config, "init", "shop_topic")
		succeed(t, config, "capture", "install", "shop_orders")
		r := mqnotify(t, config, "", "capture", "install", "shop%", "--ops", "insert")
		require.Equal(t, exitDone, r.code, r.err)
		assert.Contains(t, r.err, "captured already")
		assert.Contains(t, r.err, "mqnotify_capture_insert_shop_items")
		assert.Contains(t, r.err, "fire no triggers")
		assert.NotContains(t, r.err, "shop_topic_changes")
		assert.Equal(t, []string{"shop_items", "shop_orders"}, mysqltest.Values[string](t, db,
			"SELECT DISTINCT EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE 'mqnotify\\_capture%' ORDER BY 1"))
		assert.Contains(t, fail(t, exitFailed, config, "capture", "install", "none%"), "no table like")
	})
}
