package consumer

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/table"
)

// Ids may use all 64 bits.
func TestLargestIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		const top = math.MaxUint64 - 616 // 18446744073709550999
		for _, id := range []uint64{math.MaxInt64, math.MaxInt64 + 1, top - 5} {
			do(t, db, fmt.Sprintf("INSERT INTO orders (id, payload) VALUES (%d, 'x')", id))
		}
		var got collected
		c := run(t, db, "orders", Options{Group: "g", From: "beginning"}, got.handler())
		got.waitFor(t, "x", "x", "x")
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", fmt.Sprintf("INSERT INTO orders (id, payload) VALUES (%d, 'late')", uint64(top-3)))
		do(t, db, fmt.Sprintf("INSERT INTO orders (id, payload) VALUES (%d, 'y')", uint64(top)))
		insert(t, db, "orders", "z")
		got.waitFor(t, "x", "x", "x", "y", "z")
		onConn(t, conn, "COMMIT")
		got.waitFor(t, "x", "x", "x", "y", "z", "late")
		require.Equal(t, []uint64{math.MaxInt64, math.MaxInt64 + 1, top - 5, top, top + 1, top - 3}, got.ids())
		eventually(t, func() bool { return stored(t, db, "g") >= top }, "the gaps do not close")
		require.NoError(t, c.end(t))
		require.Equal(t, []uint64{top, top + 1}, consumed(t, db, "orders", Options{From: strconv.FormatUint(top, 10)}))
		require.Equal(t, []uint64{top + 1}, consumed(t, db, "orders", Options{From: "last 1"}))
		require.Empty(t, consumed(t, db, "orders", Options{From: "end"}))
	})
}

// Any increasing integer with a unique index can be the key, whatever its type. Rows with
// a key of 0 or less are not read.
func TestKeys(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for _, c := range []struct {
			table, options string
			key            string
			values         string
			want           []uint64
		}{
			{"signed", "id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY, x INT", "", "(1, 0), (9223372036854775807, 0)", []uint64{1, math.MaxInt64}},
			{"negative", "id INT NOT NULL PRIMARY KEY, x INT", "", "(-5, 0), (0, 0)", nil},
			{"mixed", "id INT NOT NULL PRIMARY KEY, x INT", "", "(-5, 0), (0, 0), (3, 0)", []uint64{3}},
			{"tiny", "id TINYINT UNSIGNED NOT NULL PRIMARY KEY, x INT", "", "(0, 0), (1, 0), (255, 0)", []uint64{1, 255}},
			{"named", "a CHAR(3) NOT NULL PRIMARY KEY, b MEDIUMINT UNSIGNED NOT NULL UNIQUE", "b", "('x', 3), ('y', 1)", []uint64{1, 3}},
			{"other", "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, serial BIGINT UNSIGNED NOT NULL, UNIQUE (serial)", "SERIAL", "(1, 9), (2, 4)", []uint64{4, 9}},
		} {
			do(t, db, "CREATE TABLE "+c.table+" ("+c.options+")", "INSERT INTO "+c.table+" VALUES "+c.values)
			require.Equal(t, c.want, consumed(t, db, c.table, Options{From: "beginning", Key: c.key, AcceptAnyKey: true}), c.table)
			require.Equal(t, c.want, consumed(t, db, c.table, Options{Group: "g", From: "last 10", Key: c.key, AcceptAnyKey: true}), c.table)
		}
		var got collected
		k := run(t, db, "negative", Options{From: "beginning", AcceptAnyKey: true}, got.handler())
		do(t, db, "INSERT INTO negative VALUES (-4, 0), (7, 1)")
		got.waitFor(t, `{"id":7,"x":1}`)
		require.NoError(t, k.end(t))
	})
}

// A row with an id that no consumer reads is an error, at the start and while it runs, and a warning with AcceptAnyKey.
func TestIdsBelowOne(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, insert := range map[string]string{
			"zero":     "INSERT INTO zero (id, x) VALUES (0, 1)",
			"negative": "INSERT INTO negative (id, x) VALUES (-7, 1)",
		} {
			db := openTopic(t, s)
			do(t, db, "CREATE TABLE "+name+" (id INT AUTO_INCREMENT PRIMARY KEY, x INT)", "INSERT INTO "+name+" (x) VALUES (1)")
			odd, err := db.Pool().Connx(t.Context())
			require.NoError(t, err)
			defer func() { require.NoError(t, odd.Close()) }()
			mysqltest.Exec(t, odd, "SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO'")
			var got collected
			c := run(t, db, name, Options{From: "beginning", originWait: time.Nanosecond}, got.handler())
			got.waitFor(t, `{"id":1,"x":1}`)
			mysqltest.Exec(t, odd, insert)
			mysqltest.Eventually(t, "a consumer that reads others finds it", func() bool {
				do(t, db, "INSERT INTO "+name+" (x) VALUES (1)")
				select {
				case <-c.done:
					return true
				default:
					return false
				}
			})
			require.ErrorIs(t, c.wait(t), table.ErrNoKey)
			err = run(t, db, name, Options{From: "end"}, got.handler()).wait(t)
			require.ErrorIs(t, err, table.ErrNoKey)
			require.ErrorContains(t, err, "0 or less")
			var log mysqltest.Text
			all := mysqltest.Values[uint64](t, db.Pool(), "SELECT id FROM "+name+" WHERE id > 0 ORDER BY id")
			require.Equal(t, all, consumed(t, db, name, Options{From: "beginning", AcceptAnyKey: true, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
			require.Contains(t, log.String(), "0 or less are not read")
			do(t, db, "DELETE FROM "+name+" WHERE id <= 0")
			require.Equal(t, all, consumed(t, db, name, Options{From: "beginning"}))
		}
	})
}

// With AcceptAnyKey, a row that is inserted later with a smaller key is not delivered, as documented. The table's changes
// that capture publishes contain it.
func TestAcceptAnyKeyLosesRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE shop (id BIGINT NOT NULL PRIMARY KEY, x INT)")
		var got collected
		var log mysqltest.Text
		var position atomic.Value
		c := run(t, db, "shop", Options{
			From: "beginning", AcceptAnyKey: true, Logger: slog.New(slog.NewTextHandler(&log, nil)), Watch: func(p string) { position.Store(p) },
		}, got.handler())
		do(t, db, "INSERT INTO shop VALUES (1002, 1)")
		got.waitFor(t, `{"id":1002,"x":1}`)
		eventually(t, func() bool { return position.Load() == "after 1002" }, "the gap before it stays open")
		do(t, db, "INSERT INTO shop VALUES (1001, 2)", "INSERT INTO shop VALUES (1003, 3)")
		got.waitFor(t, `{"id":1002,"x":1}`, `{"id":1003,"x":3}`)
		require.NoError(t, c.end(t))
		require.Contains(t, log.String(), "the key is not AUTO_INCREMENT")
		require.Equal(t, []uint64{1001, 1002, 1003}, consumed(t, db, "shop", Options{From: "beginning", AcceptAnyKey: true}))
	})
}

func TestKeysRefused(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for _, c := range []struct {
			columns, key string
			want         error
			says         string
		}{
			{"name VARCHAR(20) NOT NULL PRIMARY KEY", "", table.ErrNoKey, "no integer key"},
			{"id INT NOT NULL", "", table.ErrNoKey, "no integer key"},
			{"id INT NOT NULL, KEY (id)", "id", table.ErrNoKey, "no unique index"},
			{"id INT NULL UNIQUE", "id", table.ErrNoKey, "may be NULL"},
			{"id DECIMAL(20) NOT NULL PRIMARY KEY", "id", table.ErrNoKey, "is not an integer but decimal(20,0)"},
			{"id VARCHAR(20) NOT NULL PRIMARY KEY", "id", table.ErrNoKey, "is not an integer but varchar(20)"},
			{"a INT NOT NULL, id INT NOT NULL, PRIMARY KEY (a, id)", "id", table.ErrNoKey, "not the first column"},
			{"a INT NOT NULL, id INT NOT NULL, PRIMARY KEY (a, id)", "a", table.ErrNoKey, "no unique index"},
			{"id BIGINT NOT NULL PRIMARY KEY", "", table.ErrNoKey, "is not AUTO_INCREMENT: a row that is inserted later"},
			{"id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, n INT NOT NULL UNIQUE", "n", table.ErrNoKey, "AcceptAnyKey (--any-key)"},
			{"id INT NOT NULL PRIMARY KEY", "ids", table.ErrNoColumn, "did you mean `id`"},
		} {
			do(t, db, "DROP TABLE IF EXISTS shop", "CREATE TABLE shop ("+c.columns+")")
			var got collected
			err := run(t, db, "shop", Options{From: "beginning", Key: c.key}, got.handler()).wait(t)
			require.ErrorIs(t, err, c.want, c.columns)
			require.ErrorContains(t, err, c.says, c.columns)
		}
	})
}

// A table that is not a message table is read as rows, with all or some columns, and only those
// that meet the condition. A message table may be read in the same way.
func TestRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE shop (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20), n INT, at DATETIME(6))",
			"INSERT INTO shop (name, n, at) VALUES ('a', 1, '2026-01-31 08:09:10.5'), (NULL, 2, NULL), ('ö\\'\"', 3, NULL)")
		insert(t, db, "orders", "\xff")
		rows := func(topic string, options Options) (lines []string) {
			options.From, options.StopAtEnd = "beginning", true
			require.NoError(t, run(t, db, topic, options, Each(func(_ context.Context, m Message) error {
				require.True(t, m.IsRow)
				require.Equal(t, topic, m.Topic)
				require.Zero(t, m.CreatedAt)
				line, err := json.Marshal(m)
				require.JSONEq(t, string(m.Payload), string(line))
				lines = append(lines, string(line))
				return err
			})).wait(t))
			return lines
		}
		require.Equal(t, []string{
			`{"id":1,"name":"a","n":1,"at":"2026-01-31T08:09:10.500000Z"}`,
			`{"id":2,"name":null,"n":2,"at":null}`,
			`{"id":3,"name":"ö'\"","n":3,"at":null}`,
		}, rows("shop", Options{}))
		require.Equal(t, []string{`{"n":2,"name":null}`, `{"n":3,"name":"ö'\""}`},
			rows("shop", Options{Columns: []string{"n", "NAME"}, Where: "n > 1 OR name = 'b' # a comment"}))
		require.Equal(t, []string{`{"payload":"/w=="}`}, rows("orders", Options{Columns: []string{"payload"}}))
	})
}
