package capture

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The primary key, of any type, is the messages' key. An UPDATE of it becomes a delete and an insert, each with its own key.
func TestKey(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, test := range []struct {
			name, columns, first, second string
			keys                         [2]string
		}{
			{"number", "id INT(5) ZEROFILL PRIMARY KEY, a INT", "7, 1", "8, 1", [2]string{"7", "8"}},
			{"text", "id VARCHAR(20) PRIMARY KEY, a INT", `'a "b" \\ é😀', 1`, "'A', 1", [2]string{`a "b" \ é😀`, "A"}},
			{"bytes", "id VARBINARY(20) PRIMARY KEY, a INT", "X'00FF', 1", "X'01', 1", [2]string{"AP8=", "AQ=="}},
			{"time", "id DATETIME(3) PRIMARY KEY, a INT", "'2024-02-29 01:02:03.4', 1", "'2024-02-29', 1",
				[2]string{"2024-02-29T01:02:03.400Z", "2024-02-29T00:00:00.000Z"}},
			{"two", "a INT, place CHAR(2), id BIGINT, PRIMARY KEY (place, id)", "1, 'eu', 7", "1, 'us', 7", [2]string{`["eu",7]`, `["us",7]`}},
		} {
			db := open(t, s.Database(t))
			mysqltest.Exec(t, db.Pool(), "CREATE TABLE t ("+test.columns+") CHARACTER SET utf8mb4")
			_, err := Install(t.Context(), db, "t", Options{})
			require.NoError(t, err)
			mysqltest.ExecAll(t, db.Pool(), "INSERT INTO t VALUES ("+test.first+")", "UPDATE t SET a = 2")
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE moved LIKE t", "INSERT INTO moved VALUES ("+test.second+")",
				map[bool]string{
					true:  "UPDATE t, moved SET t.place = moved.place",
					false: "UPDATE t, moved SET t.id = moved.id",
				}[test.name == "two"], "DELETE FROM t")
			one, two := test.keys[0], test.keys[1]
			assert.Equal(t, []string{one, one, one, two, two}, keys(t, db, "t_changes"), test.name)
			assert.Equal(t, []string{"insert", "update", "delete", "insert", "delete"},
				mysqltest.Values[string](t, db.Pool(), "SELECT JSON_UNQUOTE(JSON_EXTRACT(headers, '$.op')) FROM t_changes ORDER BY id"), test.name)
		}
	})
}

// If not all ops are captured, an UPDATE of the key is an update with the new key. A table without a primary key has no keys.
func TestKeyOfSomeOps(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders, "CREATE TABLE bare (id INT)", "INSERT INTO orders (id) VALUES (1)")
		_, err := Install(t.Context(), db, "orders", Options{Ops: []string{"update"}})
		require.NoError(t, err)
		mysqltest.Exec(t, db.Pool(), "UPDATE orders SET id = 2")
		assert.Equal(t, []string{`update {"id":1,"name":null,"paid":0} {"id":2,"name":null,"paid":0}`}, changes(t, db, "orders_changes"))
		assert.Equal(t, []string{"2"}, keys(t, db, "orders_changes"))

		_, err = Install(t.Context(), db, "bare", Options{})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO bare VALUES (1)", "UPDATE bare SET id = 2")
		assert.Equal(t, []string{`insert null {"id":1}`, `update {"id":1} {"id":2}`}, changes(t, db, "bare_changes"))
		assert.Equal(t, 2, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM bare_changes WHERE JSON_EXTRACT(headers, '$.key') IS NULL"))
		_, err = Install(t.Context(), db, "bare", Options{Tombstones: true})
		require.ErrorIs(t, err, notify.ErrOptions)
	})
}

// With Tombstones a message with the row's key and an empty payload follows each delete. A repair keeps the option.
func TestTombstones(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.Exec(t, db.Pool(), orders)
		_, err := Install(t.Context(), db, "orders", Options{Tombstones: true})
		require.NoError(t, err)
		_, err = Repair(t.Context(), db, "orders", Options{})
		require.NoError(t, err)
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (id) VALUES (1)", "UPDATE orders SET id = 2", "DELETE FROM orders")
		assert.Equal(t, []string{"insert 1 ", "delete 1 ", "delete 1 true", "insert 2 ", "delete 2 ", "delete 2 true"},
			mysqltest.Values[string](t, db.Pool(), `SELECT CONCAT(JSON_UNQUOTE(JSON_EXTRACT(headers, '$.op')), ' ', JSON_UNQUOTE(JSON_EXTRACT(headers, '$.key')), ' ',
				COALESCE(JSON_UNQUOTE(JSON_EXTRACT(headers, '$.tombstone')), '')) FROM orders_changes ORDER BY id`))
		assert.Equal(t, []string{"", ""}, mysqltest.Values[string](t, db.Pool(),
			"SELECT payload FROM orders_changes WHERE JSON_EXTRACT(headers, '$.tombstone') IS NOT NULL"))
	})
}

// Plan.Cascades has the foreign keys whose actions change rows without firing triggers.
func TestCascades(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s.Database(t))
		mysqltest.ExecAll(t, db.Pool(), orders,
			"CREATE TABLE items (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES orders (id) ON DELETE CASCADE)",
			"CREATE TABLE notes (id INT PRIMARY KEY, o INT, FOREIGN KEY (o) REFERENCES orders (id))")
		for name, want := range map[string][]string{"items": {"orders"}, "notes": nil, "orders": nil} {
			plan, err := Install(t.Context(), db, name, Options{})
			require.NoError(t, err)
			assert.Equal(t, want, plan.Cascades, name)
		}
	})
}
