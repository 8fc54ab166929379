package main

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/capture"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A consumer gets a change by plain SQL as a message, until the capture is removed.
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

		require.Contains(t, fail(t, exitFailed, config, "capture", "install", "stock"), "`mqnotify_capture_insert_stock` runs already")
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
		succeed(t, config, "capture", "repair", "stock")
		assert.Contains(t, succeed(t, config, "capture", "status"), "without place", "as before")
		succeed(t, config, "capture", "repair", "stock", "--without", "")
		assert.NotContains(t, succeed(t, config, "capture", "status"), "without")
		mysqltest.Exec(t, db, "CREATE TABLE stock_new LIKE stock")
		mysqltest.Exec(t, db, "RENAME TABLE stock TO stock_old, stock_new TO stock")
		r = mqnotify(t, config, "", "capture", "status", "stock")
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, "MOVED: made for stock")
		assert.Contains(t, fail(t, exitFailed, config, "capture", "install", "stock"), "mqnotify capture repair stock")
		succeed(t, config, "capture", "repair", "stock")
		succeed(t, config, "capture", "status")
		mysqltest.Exec(t, db, "ALTER TABLE stock_changes MODIFY payload BLOB NOT NULL")
		assert.Contains(t, fail(t, exitFailed, config, "capture", "status"), "ALTER TABLE `stock_changes` MODIFY payload LONGBLOB NOT NULL")
		mysqltest.Exec(t, db, "DROP TABLE stock_changes")
		r = mqnotify(t, config, "", "capture", "status")
		assert.Equal(t, exitFailed, r.code)
		assert.Contains(t, r.out, "BROKEN: no topic stock_changes")
		assert.Contains(t, r.err, "unless the topic stock_changes exists and this account may not see it")

		succeed(t, config, "capture", "remove", "stock")
		require.Equal(t, nothingCaptured+"\n", succeed(t, config, "capture", "status"))
		assert.Contains(t, fail(t, exitFailed, config, "capture", "status", "stock"), "stock: the table is not captured")
		require.Equal(t, exitDone, mqnotify(t, config, "", "capture", "remove", "stock").code)
	})
}

// The SQL that --print prints makes the same triggers. It needs a client that knows DELIMITER.
func TestCapturePrint(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)")
		script := succeed(t, config, "capture", "install", "stock", "--ops", "insert,UPDATE", "--print")
		const triggers = `SELECT CONCAT_WS('|', TRIGGER_NAME, ACTION_STATEMENT, SQL_MODE) FROM information_schema.TRIGGERS
			WHERE EVENT_OBJECT_SCHEMA = DATABASE() ORDER BY 1`
		require.Empty(t, mysqltest.Values[string](t, db, triggers), "--print makes no trigger")
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
		since := regexp.MustCompile(`"since":"[A-Z2-7]+"`) // a random value
		for i, made := range mysqltest.Values[string](t, db, triggers) {
			require.Equal(t, since.ReplaceAllString(printed[i], ""), since.ReplaceAllString(made, ""))
			require.NotEqual(t, printed[i], made)
		}
	})
}

// A pattern captures all tables that match it, except those that are captured already or cannot be. The command goes on after a table
// that fails, and warns of foreign keys that cascade.
func TestCapturePattern(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		for _, statement := range []string{
			"CREATE TABLE shop_orders (id INT PRIMARY KEY)", "CREATE VIEW shop_view AS SELECT * FROM shop_orders", "CREATE TABLE other (id INT)", "CREATE TABLE shop_old (id INT PRIMARY KEY) ENGINE=MyISAM",
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
		assert.Contains(t, r.err, "no trigger fires")
		assert.Equal(t, 1, strings.Count(r.err, "has no transactions"), r.err)
		assert.Contains(t, r.err, "engine=MyISAM")
		assert.NotContains(t, r.err, "shop_topic_changes")
		assert.Equal(t, []string{"shop_items", "shop_old", "shop_orders"}, mysqltest.Values[string](t, db,
			"SELECT DISTINCT EVENT_OBJECT_TABLE FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND TRIGGER_NAME LIKE 'mqnotify\\_capture%' ORDER BY 1"))
		assert.Contains(t, fail(t, exitFailed, config, "capture", "install", "none%"), "no table like")

		// A table that can't have a snapshot does not stop the command. A second run finds the snapshots.
		for _, done := range []int{2, 0} {
			said := fail(t, exitFailed, config, "capture", "install", "shop%", "--snapshot")
			assert.Equal(t, done, strings.Count(said, "the snapshot is done"), said)
			assert.Contains(t, said, `1 of the 3 tables like "shop%" failed: shop_old`)
		}
		said := fail(t, exitFailed, config, "capture", "snapshot", "shop%")
		assert.Equal(t, 2, strings.Count(said, "the snapshot is done"), said)
		assert.Contains(t, said, "ALTER TABLE `shop_old` ENGINE=InnoDB")
		fail(t, exitUsage, config, "capture", "snapshot", "shop_old")

		// A backslash in a pattern takes the next character literally, in every sql_mode.
		mysqltest.ExecAll(t, db, "CREATE TABLE shopping (id INT PRIMARY KEY)", "CREATE TABLE `shop_|` (id INT PRIMARY KEY)")
		for _, mode := range []string{"", "NO_BACKSLASH_ESCAPES"} {
			config.Params = map[string]string{"sql_mode": "'" + mode + "'"}
			db, err := notify.OpenConfig(config)
			require.NoError(t, err)
			names, err := captureTables(t.Context(), db, `shop\_%`)
			require.NoError(t, err)
			assert.Equal(t, []string{"shop_items", "shop_old", "shop_orders", "shop_|"}, names, mode)
			names, err = captureTables(t.Context(), db, `%|`)
			require.NoError(t, err)
			assert.Equal(t, []string{"shop_|"}, names, mode)
			require.NoError(t, db.Close())
		}
	})
}

// status shows a snapshot that was killed as unfinished. The next run finishes it and writes each row once. install --snapshot
// writes the rows as well.
func TestCaptureSnapshot(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		succeed(t, config, "init")
		mysqltest.Exec(t, db, "CREATE TABLE stock (id INT PRIMARY KEY, pieces INT)")
		mysqltest.Exec(t, db, "CREATE TABLE store (id INT PRIMARY KEY)")
		mysqltest.Exec(t, db, "INSERT INTO stock VALUES (1, 5), (2, 6)")
		r := mqnotify(t, config, "", "capture", "install", "stock", "--snapshot")
		require.Equal(t, exitDone, r.code, r.err)
		assert.Contains(t, r.err, `msg="the snapshot is done" table=stock into=stock_changes rows=2 from=1`)
		assert.Equal(t, `{"op":"read","table":"stock","old":null,"new":{"id":1,"pieces":5}}`+"\n"+`{"op":"read","table":"stock","old":null,"new":{"id":2,"pieces":6}}`+"\n",
			succeed(t, config, "consume", "stock_changes", "--from", "1", "--stop-at-end", "--format", "payload"))
		assert.Contains(t, succeed(t, config, "capture", "status", "--json"), `"snapshot":{"done":true,"from":1,"rows":2}`)
		fail(t, exitUsage, config, "capture", "install", "store", "--snapshot", "--print")
		assert.Contains(t, fail(t, exitFailed, config, "capture", "snapshot", "store"), "mqnotify capture install store")

		// A locked row stops the snapshot, so that status can show it and the test can kill it.
		values := make([]string, 1000)
		for i := range values {
			values[i] = fmt.Sprintf("(%d, 1)", i+10)
		}
		mysqltest.Exec(t, db, "INSERT INTO stock VALUES "+strings.Join(values, ", "))
		tx, err := db.BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "UPDATE stock SET pieces = 9 WHERE id = 700")
		require.NoError(t, err)
		p := launch(t, config, nil, "capture", "snapshot", "sto%")
		p.err.contains(t, "trying again")
		require.NoError(t, p.Process.Kill())
		p.code(t)
		require.NoError(t, tx.Commit())
		assert.Contains(t, succeed(t, config, "capture", "status"), "ok; snapshot unfinished, 692 rows")
		r = mqnotify(t, config, "", "capture", "snapshot", "sto%")
		require.Equal(t, exitDone, r.code, r.err)
		assert.Contains(t, r.err, "rows=1002")
		assert.Contains(t, r.err, `msg="skipped: the table is not captured" table=store`)
		assert.NotContains(t, succeed(t, config, "capture", "status"), "unfinished")
		assert.Equal(t, []string{"1002"}, mysqltest.Values[string](t, db,
			"SELECT COUNT(DISTINCT JSON_EXTRACT(headers, '$.key')) FROM stock_changes WHERE id > 1003 AND JSON_EXTRACT(headers, '$.op') = 'read'"))
		assert.Equal(t, []string{"2005"}, mysqltest.Values[string](t, db, "SELECT COUNT(*) FROM stock_changes"), "2 rows, 1000 inserts, 1 update, and each of 1002 rows once")
	})
}

// On a terminal a snapshot draws a progress bar.
func TestSnapshotBar(t *testing.T) {
	var err text
	a := newApp(streams{err: &err})
	p := &snapshotProgress{app: a, draws: true}
	require.Eventually(t, func() bool { // not every report draws the bar
		p.report(capture.Progress{Table: "orders", Rows: 500, Estimate: 1000})
		return strings.Contains(err.String(), "50%") && strings.Contains(err.String(), "(500/1000")
	}, patience, 20*time.Millisecond)
	p.report(capture.Progress{Table: "orders", Rows: 2000, Estimate: 1000}) // more rows than the estimate
	p.end()
	require.Contains(t, err.String(), "orders")
	require.Equal(t, "\n", err.String()[len(err.String())-1:])
}
