package consumer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// A message table that is altered while a consumer runs still delivers its messages.
func TestAlterMessageTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		var got collected
		c := run(t, db, "orders", Options{Group: "g", From: "beginning"}, got.handler())
		insert(t, db, "orders", "one")
		got.waitFor(t, "one")
		for i, statement := range []string{
			"ALTER TABLE orders ADD COLUMN shop INT NULL FIRST",
			"ALTER TABLE orders MODIFY payload MEDIUMBLOB NOT NULL",
			"ALTER TABLE orders ENGINE=InnoDB", // a table of its own, with the same rows
			"RENAME TABLE orders TO other, other TO orders",
			"OPTIMIZE TABLE orders",
		} {
			do(t, db, statement)
			insert(t, db, "orders", "next")
			eventually(t, func() bool { return len(got.ids()) == i+2 }, "after %s: %v", statement, got.payloads())
		}
		require.NoError(t, c.end(t))
		require.Equal(t, uint64(6), stored(t, db, "g"))
	})
}

// Rows of any table have the columns that it has when they are read, even if these change while the consumer runs.
func TestAlterRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE shop (id INT AUTO_INCREMENT PRIMARY KEY, n INT, text VARCHAR(20))")
		var got, names collected
		c := run(t, db, "shop", Options{Group: "g", From: "beginning"}, got.handler())
		k := run(t, db, "shop", Options{From: "beginning", Columns: []string{"n"}}, names.handler())
		next := func(statement, want string) {
			before := len(got.ids())
			do(t, db, statement)
			eventually(t, func() bool { return len(got.ids()) > before }, "after %s", statement)
			payloads := got.payloads()
			require.JSONEq(t, want, payloads[len(payloads)-1])
		}
		next("INSERT INTO shop VALUES (1, 7, 'a')", `{"id": 1, "n": 7, "text": "a"}`)
		eventually(t, func() bool { return len(names.ids()) == 1 }, "the column does not come")
		do(t, db, "ALTER TABLE shop MODIFY n VARCHAR(10)")
		next("INSERT INTO shop VALUES (2, '07', 'a')", `{"id": 2, "n": "07", "text": "a"}`)
		do(t, db, "ALTER TABLE shop MODIFY n BINARY(2)")
		next("INSERT INTO shop VALUES (3, 'ab', 'a')", `{"id": 3, "n": "YWI=", "text": "a"}`)
		do(t, db, "ALTER TABLE shop DROP COLUMN text")
		next("INSERT INTO shop VALUES (4, 'ab')", `{"id": 4, "n": "YWI="}`)
		do(t, db, "ALTER TABLE shop ADD COLUMN more JSON")
		next(`INSERT INTO shop VALUES (5, 'ab', '{"a": 1}')`, `{"id": 5, "n": "YWI=", "more": {"a": 1}}`)
		do(t, db, "ALTER TABLE shop CHANGE more `it's` JSON")
		next(`INSERT INTO shop VALUES (6, 'ab', '[1]')`, `{"id": 6, "n": "YWI=", "it's": [1]}`)
		for i, kind := range []string{"LONGTEXT", "JSON", "TEXT", "JSON", "MEDIUMTEXT CHARACTER SET utf8mb4", "LONGTEXT", "JSON"} {
			want := `{"a": 1}`
			if kind != "JSON" {
				want = `"{\"a\": 1}"`
			}
			do(t, db, "ALTER TABLE shop MODIFY `it's` "+kind)
			next(fmt.Sprintf(`INSERT INTO shop VALUES (%d, 'ab', '{"a": 1}')`, 7+i), fmt.Sprintf(`{"id": %d, "n": "YWI=", "it's": %s}`, 7+i, want))
		}
		require.NoError(t, c.end(t))

		do(t, db, "ALTER TABLE shop DROP COLUMN n")
		insertRow := "INSERT INTO shop (id) VALUES (20)"
		do(t, db, insertRow)
		require.ErrorIs(t, k.wait(t), table.ErrNoColumn, "a column that was asked for is gone")
	})
}

// An account that may read only some columns gets those.
func TestColumnsThatMayBeRead(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin := openConfig(t, config)
		do(t, admin, "CREATE TABLE shop (id INT AUTO_INCREMENT PRIMARY KEY, secret INT, n INT)")
		db, err := notify.OpenConfig(s.User(t, config, "SELECT (id, n) ON "+config.DBName+".shop"))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		var got collected
		c := run(t, db, "shop", Options{From: "beginning"}, got.handler())
		do(t, admin, "INSERT INTO shop VALUES (1, 2, 3)")
		got.waitFor(t, `{"id":1,"n":3}`)
		require.NoError(t, c.end(t))
	})
}

// A page that could not be read because the table was locked is read again soon after the lock is free, though no other row comes.
func TestLockedWhileReading(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		rows, _ := newAheadRows(t, db)
		require.NoError(t, rows.prepare(t.Context()))
		out := make(chan batch, 1)
		r := &reader{rows: rows, source: unknown{}, wm: newWatermark(0, position.Set{}), out: out, log: testLogger(t), pageRows: 100, limit: 100}
		r.gapWaits = notify.Fibonacci{Max: maxGapWait}
		require.Equal(t, maxWait, r.bound(false))
		insert(t, db, "orders", "one")
		lock := newConn(t, db)
		onConn(t, lock, "LOCK TABLES orders WRITE")
		found, err := r.drain(t.Context())
		require.NoError(t, err)
		require.False(t, found)
		require.LessOrEqual(t, r.bound(false), maxGapWait)
		onConn(t, lock, "UNLOCK TABLES")
		found, err = r.drain(t.Context())
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, []uint64{1}, idsOf((<-out).messages))
		r.wm.settle(1)
		require.Equal(t, maxWait, r.bound(false))
	})
}
