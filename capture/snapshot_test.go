package capture

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// withState is open that also makes mqnotify_snapshot.
func withState(tb testing.TB, s *mysqltest.Server) *notify.DB {
	tb.Helper()
	db := open(tb, s.Database(tb))
	require.NoError(tb, schema.Init(tb.Context(), db.Pool()))
	return db
}

// takeSnapshot makes a snapshot that ends without an error.
func takeSnapshot(tb testing.TB, db *notify.DB, name string, options SnapshotOptions) Progress {
	tb.Helper()
	if options.Logger == nil {
		options.Logger = quiet
	}
	done, err := Snapshot(tb.Context(), db, name, options)
	require.NoError(tb, err)
	require.True(tb, done.Done)
	return done
}

// manyParts inserts that many rows into the table parts.
func manyParts(tb testing.TB, db *notify.DB, count int) {
	tb.Helper()
	mysqltest.Exec(tb, db.Pool(), "CREATE TABLE parts (id INT PRIMARY KEY, name VARCHAR(20), n INT, gone INT)")
	values := make([]string, count)
	for i := range values {
		values[i] = fmt.Sprintf("(%d, 'part %d', %d)", i+1, i+1, i+1)
	}
	if count > 0 {
		mysqltest.Exec(tb, db.Pool(), "INSERT INTO parts (id, name, n) VALUES "+strings.Join(values, ", "))
	}
}

// A snapshot's messages are the existing rows in the order of the key; they look like inserts with another op. A later snapshot writes
// them again.
func TestSnapshot(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		mysqltest.ExecAll(t, db.Pool(), orders, `INSERT INTO orders VALUES (7, 'a "b" \\ é😀', 1), (2, NULL, 0)`)
		_, err := Install(t.Context(), db, "orders", Options{Without: []string{"paid"}})
		require.NoError(t, err)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (id) VALUES (3)")
		var reports []Progress
		done := takeSnapshot(t, db, "orders", SnapshotOptions{Report: func(p Progress) { reports = append(reports, p) }})
		assert.Equal(t, Progress{Table: "orders", Topic: "orders_changes", From: 2, Rows: 3, Estimate: done.Estimate, Done: true}, done)
		require.NotEmpty(t, reports)
		assert.Equal(t, done, reports[len(reports)-1])
		rows := []string{`read null {"id":2,"name":null}`, `read null {"id":3,"name":null}`, `read null {"id":7,"name":"a \"b\" \\ é😀"}`}
		assert.Equal(t, append([]string{`insert null {"id":3,"name":null}`}, rows...), changes(t, db, "orders_changes"))
		assert.Equal(t, []string{"3", "2", "3", "7"}, keys(t, db, "orders_changes"))

		again := takeSnapshot(t, db, "orders", SnapshotOptions{})
		assert.Equal(t, uint64(5), again.From)
		assert.Equal(t, append(append([]string{`insert null {"id":3,"name":null}`}, rows...), rows...), changes(t, db, "orders_changes"))

		mysqltest.Exec(t, db.Pool(), "DELETE FROM orders")
		empty := takeSnapshot(t, db, "orders", SnapshotOptions{})
		assert.Equal(t, Progress{Table: "orders", Topic: "orders_changes", From: 11, Estimate: empty.Estimate, Done: true}, empty)
	})
}

// replayOf applies the messages of a topic from an id on, as described in docs/guide/capture.md.
func replayOf(tb testing.TB, db *notify.DB, topic string, from uint64) map[string]string {
	tb.Helper()
	var messages []struct{ Headers, Payload string }
	require.NoError(tb, db.Pool().SelectContext(tb.Context(), &messages, "SELECT headers, payload FROM "+ident.Quote(topic)+" WHERE id >= ? ORDER BY id", from))
	rows := make(map[string]string)
	for _, m := range messages {
		var headers struct{ Key string }
		require.NoError(tb, json.Unmarshal([]byte(m.Headers), &headers))
		var c change
		require.NoError(tb, json.Unmarshal([]byte(m.Payload), &c))
		if string(c.New) == "null" {
			delete(rows, headers.Key)
			continue
		}
		rows[headers.Key] = string(c.New)
	}
	return rows
}

// With a primary key of any type, a snapshot in chunks has every row once.
func TestSnapshotKeys(t *testing.T) {
	const count = 150 // three chunks
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		types := []struct{ columns, key, value string }{
			{"id BIGINT", "id", "(n - 75) * 100000000000000000"},
			{"id BIGINT UNSIGNED", "id", "18446744073709551615 - n"},
			{"id INT(7) UNSIGNED ZEROFILL", "id", "n"},
			{"id DECIMAL(40,5)", "id", "CONCAT(n - 70, '00000000000000000000000000000.00001')"},
			{"id DOUBLE", "id", "(n - 70) / 7e200"},
			{"id FLOAT", "id", "(n - 70) / 7"},
			{"id BIT(64)", "id", "18446744073709551615 - n"},
			{"id DATE", "id", "IF(n = 1, '0000-00-00', DATE '2024-01-01' + INTERVAL n DAY)"},
			{"id DATETIME(6)", "id", "TIMESTAMP '2024-10-27 02:00:00.000001' + INTERVAL n MINUTE"},
			{"id TIMESTAMP", "id", "FROM_UNIXTIME(1729987200 + 60 * n)"}, // the hour that is there twice is among them
			{"id TIME(3)", "id", "SEC_TO_TIME((n - 75) * 40000)"},
			{"id YEAR", "id", "1901 + n"},
			{"id VARCHAR(50) CHARACTER SET utf8mb4", "id", `CONCAT('é😀\\ ''"', n)`},
			{"id CHAR(50) CHARACTER SET latin1 COLLATE latin1_german2_ci", "id", "CONCAT('ö', n)"},
			{"id VARCHAR(50) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin", "id", "CONCAT(IF(n % 2, 'a', 'A'), n)"},
			{"id BINARY(16)", "id", "UNHEX(LEFT(SHA2(n, 256), 32))"},
			{"id VARBINARY(20)", "id", "CONCAT(UNHEX(LEFT(SHA2(n, 256), 32)), X'00')"},
			{"kind ENUM('z', 'b', 'a'), flags SET('x', 'd', 'c'), n INT", "kind, flags, n", "1 + n % 3, n % 8, n"},
			{"b VARCHAR(20) CHARACTER SET utf8mb4, a INT, c BINARY(2)", "a, b, c", "CONCAT('b', n % 5), n % 4, UNHEX(LPAD(HEX(n), 4, '0'))"},
		}
		if s.IsMariaDB() {
			types = append(types, struct{ columns, key, value string }{"id UUID", "id", "INSERT(INSERT(LEFT(SHA2(n, 256), 32), 13, 1, IF(n % 2, '4', '7')), 17, 1, '9')"},
				struct{ columns, key, value string }{"id INET6", "id", "CONCAT('2001:db8::', HEX(n))"})
		}
		db := withState(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE numbers (n INT)")
		for n := range count {
			mysqltest.Exec(t, db.Pool(), "INSERT INTO numbers VALUES (?)", n+1)
		}
		for i, test := range mysqltest.Some(t, types) {
			name := fmt.Sprint("t", i)
			conn, err := db.Pool().Connx(t.Context())
			require.NoError(t, err)
			mysqltest.ExecAll(t, conn, "SET sql_mode = 'ALLOW_INVALID_DATES', time_zone = '+00:00'",
				"CREATE TABLE "+name+" ("+test.columns+", PRIMARY KEY ("+test.key+")) ENGINE=InnoDB",
				"INSERT INTO "+name+" SELECT "+test.value+" FROM numbers")
			require.NoError(t, conn.Close())
			_, err = Install(t.Context(), db, name, Options{})
			require.NoError(t, err)
			done := takeSnapshot(t, db, name, SnapshotOptions{})
			assert.Equal(t, uint64(count), done.Rows, test.columns)
			assert.Len(t, replayOf(t, db, name+"_changes", 0), count, test.columns)
		}
	})
}

// A snapshot that was stopped continues after the last chunk, also after a killed connection, and writes each row once. Two snapshots of a
// table exclude each other.
func TestSnapshotResumes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		manyParts(t, db, 2000)
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		lock := core.LockName("snapshot", db.Name(), "parts")
		ctx, stop := context.WithCancel(t.Context())
		chunks := 0
		p, err := Snapshot(ctx, db, "parts", SnapshotOptions{Logger: quiet, Report: func(Progress) {
			switch chunks++; chunks {
			case 2:
				_, err := Snapshot(t.Context(), db, "parts", SnapshotOptions{Logger: quiet})
				assert.ErrorIs(t, err, notify.ErrNotAcquired)
			case 3:
				mysqltest.KillSession(t, db.Pool(), mysqltest.Value[uint64](t, db.Pool(), "SELECT IS_USED_LOCK(?)", lock))
			case 4:
				stop()
			}
		}})
		require.ErrorIs(t, err, context.Canceled)
		require.Positive(t, p.Rows)
		require.False(t, p.Done)
		state := states(t, db, "parts")[0]
		require.NotNil(t, state.Snapshot)
		assert.Equal(t, Progress{Table: "parts", Topic: "parts_changes", From: 1, Rows: p.Rows}, *state.Snapshot)

		mysqltest.Exec(t, db.Pool(), "DELETE FROM parts WHERE id > 1990")
		p = takeSnapshot(t, db, "parts", SnapshotOptions{})
		assert.Equal(t, uint64(1), p.From)
		assert.Equal(t, uint64(1990), p.Rows)
		assert.True(t, states(t, db, "parts")[0].Snapshot.Done)
		assert.Equal(t, 1990, mysqltest.Value[int](t, db.Pool(), `SELECT COUNT(DISTINCT JSON_EXTRACT(headers, '$.key')) FROM parts_changes WHERE JSON_EXTRACT(headers, '$.op') = 'read'`))
		assert.Equal(t, 2000, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM parts_changes"))
		assert.Equal(t, contents(t, db), replayed(t, db, 0))
	})
}

// stopAfter makes chunks of a snapshot and stops it.
func stopAfter(t *testing.T, db *notify.DB, chunks int) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	_, err := Snapshot(ctx, db, "parts", SnapshotOptions{Logger: quiet, Report: func(Progress) {
		if chunks--; chunks == 0 {
			stop()
		}
	}})
	require.ErrorIs(t, err, context.Canceled)
}

// A snapshot begins again instead of continuing if changes were not captured in between, if the key was changed, or with Restart.
func TestSnapshotRestarts(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, test := range map[string]struct {
			between []string
			capture func(db *notify.DB) error
			options SnapshotOptions
		}{
			"removed": {[]string{"UPDATE parts SET name = 'unseen'"}, func(db *notify.DB) error {
				_, err := Install(t.Context(), db, "parts", Options{})
				return err
			}, SnapshotOptions{}},
			"swapped": {[]string{
				"CREATE TABLE parts_new LIKE parts", "INSERT INTO parts_new SELECT * FROM parts", "RENAME TABLE parts TO parts_old, parts_new TO parts",
				"UPDATE parts SET name = 'unseen'",
			}, func(db *notify.DB) error {
				_, err := Snapshot(t.Context(), db, "parts", SnapshotOptions{Logger: quiet})
				assert.ErrorIs(t, err, ErrNotCaptured)
				assert.ErrorContains(t, err, "mqnotify capture repair parts")
				_, err = Repair(t.Context(), db, "parts", Options{})
				return err
			}, SnapshotOptions{}},
			"key": {[]string{"ALTER TABLE parts DROP PRIMARY KEY, ADD PRIMARY KEY (name)"}, func(db *notify.DB) error {
				_, err := Snapshot(t.Context(), db, "parts", SnapshotOptions{Logger: quiet})
				assert.ErrorContains(t, err, "mqnotify capture repair parts")
				_, err = Repair(t.Context(), db, "parts", Options{})
				return err
			}, SnapshotOptions{}},
			"told": {nil, func(*notify.DB) error { return nil }, SnapshotOptions{Restart: true}},
		} {
			t.Run(name, func(t *testing.T) {
				db := withState(t, s)
				manyParts(t, db, 100)
				_, err := Install(t.Context(), db, "parts", Options{})
				require.NoError(t, err)
				stopAfter(t, db, 2)
				if name == "removed" {
					_, err := Remove(t.Context(), db, "parts", Options{})
					require.NoError(t, err)
				}
				mysqltest.ExecAll(t, db.Pool(), test.between...)
				require.NoError(t, test.capture(db))
				p := takeSnapshot(t, db, "parts", test.options)
				assert.Equal(t, uint64(100), p.Rows)
				assert.Greater(t, p.From, uint64(32))
				assert.Len(t, replayed(t, db, p.From), 100)
				if name != "key" {
					assert.Equal(t, contents(t, db), replayed(t, db, p.From))
				}
			})
		}
	})
}

// A snapshot waits for a row that an open transaction has changed, and locks no other row meanwhile. After Patience the error is ErrBusy.
func TestSnapshotWaitsForARow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		manyParts(t, db, 100)
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "UPDATE parts SET name = 'late' WHERE id = 20")
		p, err := Snapshot(t.Context(), db, "parts", SnapshotOptions{Patience: time.Millisecond, Logger: quiet})
		require.ErrorIs(t, err, ErrBusy)
		assert.Equal(t, uint64(19), p.Rows)

		going := mysqltest.Result(func() error {
			_, err := Snapshot(t.Context(), db, "parts", SnapshotOptions{Restart: true, Logger: quiet})
			return err
		})
		const waits = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO REGEXP "
		mysqltest.Eventually(t, "the snapshot waits", func() bool {
			assert.Zero(t, mysqltest.Value[int](t, db.Pool(), waits+"'LIMIT ([2-9]|[0-9]{2,}) (LOCK IN SHARE MODE|FOR SHARE)$'"), "several rows are waited for")
			return mysqltest.Value[int](t, db.Pool(), waits+"'ORDER BY `?source`?.`id` LIMIT 1 LOCK IN SHARE MODE$'") > 0
		})
		conn, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		mysqltest.ExecAll(t, conn, "SET innodb_lock_wait_timeout = 1", "UPDATE parts SET n = -1 WHERE id = 19", "UPDATE parts SET n = -1 WHERE id = 21")
		require.NoError(t, conn.Close())
		require.NoError(t, tx.Commit())
		require.NoError(t, mysqltest.Receive(t, going))
		assert.Equal(t, contents(t, db), replayed(t, db, 0))
	})
}

// A row that is inserted before the snapshot begins, in a transaction that is still open, has a message with a smaller id than
// the snapshot's first. The snapshot has the row too, so that the messages from its first id on make the whole table.
func TestSnapshotFrom(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		manyParts(t, db, 100)
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.ExecAll(t, tx, "INSERT INTO parts (id, name, n) VALUES (0, 'first', 0), (101, 'last', 101)", "DELETE FROM parts WHERE id = 50")
		going := mysqltest.Result(func() Progress {
			p, err := Snapshot(t.Context(), db, "parts", SnapshotOptions{Logger: quiet})
			assert.NoError(t, err)
			return p
		})
		mysqltest.Eventually(t, "the snapshot waits", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO LIKE 'SELECT%DESC LIMIT 1 LOCK%'") > 0
		})
		require.NoError(t, tx.Commit())
		p := mysqltest.Receive(t, going)
		assert.Equal(t, uint64(4), p.From)
		assert.Equal(t, uint64(101), p.Rows)
		assert.Equal(t, contents(t, db), replayed(t, db, p.From))
	})
}

// Chunks of large rows have few rows. A row that is too large for a message ends the snapshot with an error.
func TestSnapshotOfLargeRows(t *testing.T) {
	mysqltest.NotShort(t, "TestSnapshotKeys")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE files (id INT PRIMARY KEY, content LONGTEXT)")
		for id := range 6 {
			mysqltest.Exec(t, db.Pool(), "INSERT INTO files VALUES (?, REPEAT('x', 1500000))", id)
		}
		_, err := Install(t.Context(), db, "files", Options{})
		require.NoError(t, err)
		before := uint64(0)
		done := takeSnapshot(t, db, "files", SnapshotOptions{Report: func(p Progress) {
			assert.LessOrEqual(t, p.Rows-before, uint64(3))
			before = p.Rows
		}})
		assert.Equal(t, uint64(6), done.Rows)
		packet := mysqltest.Value[int](t, db.Pool(), "SELECT @@max_allowed_packet")
		if packet > 16<<20 {
			return // to fill it takes too long
		}
		mysqltest.Exec(t, db.Pool(), "DELETE FROM files")
		_, err = Remove(t.Context(), db, "files", Options{})
		require.NoError(t, err)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO files VALUES (1, 'x'), (2, REPEAT('x', ?))", packet-20) // and what stands around it
		_, err = Install(t.Context(), db, "files", Options{})
		require.NoError(t, err)
		_, err = Snapshot(t.Context(), db, "files", SnapshotOptions{Logger: quiet})
		require.ErrorAs(t, err, new(*notify.TooLargeError))
		require.ErrorContains(t, err, "max_allowed_packet")
	})
}

// A table of which no snapshot can be made gives an error with the remedy.
func TestSnapshotErrors(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders, "CREATE TABLE bare (id INT)", "CREATE TABLE old (id INT PRIMARY KEY) ENGINE=MyISAM", "CREATE VIEW v AS SELECT * FROM bare",
			"CREATE TABLE both_ways (id INT PRIMARY KEY)")
		for _, name := range []string{"orders", "bare", "old"} {
			_, err := Install(t.Context(), db, name, Options{})
			require.NoError(t, err)
		}
		for _, into := range []Options{{Ops: []string{"insert"}, Into: "a"}, {Ops: []string{"delete"}, Into: "b"}} {
			_, err := Install(t.Context(), db, "both_ways", into)
			require.NoError(t, err)
		}
		_, err := Snapshot(t.Context(), db, "orders", SnapshotOptions{Logger: quiet})
		require.ErrorIs(t, err, notify.ErrNoState)
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		takeSnapshot(t, db, "orders", SnapshotOptions{})
		for name, want := range map[string]error{"bare": notify.ErrOptions, "old": notify.ErrOptions, "both_ways": notify.ErrOptions, "v": notify.ErrNotTopic, "none": notify.ErrNoTable, "mqnotify_snapshot": ErrNotCaptured} {
			_, err := Snapshot(t.Context(), db, name, SnapshotOptions{Logger: quiet})
			require.ErrorIs(t, err, want, name)
		}
		_, err = Snapshot(t.Context(), db, "orders", SnapshotOptions{Patience: -1})
		require.ErrorIs(t, err, notify.ErrOptions)
		if s.IsMariaDB() {
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE odd (id UUID PRIMARY KEY)", "INSERT INTO odd VALUES ('c4ca4238-a0b9-2382-0dcc-509a6f75849b')")
			_, err := Install(t.Context(), db, "odd", Options{})
			require.NoError(t, err)
			_, err = Snapshot(t.Context(), db, "odd", SnapshotOptions{Logger: quiet})
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, "BINARY(16)")
		}
	})
}
