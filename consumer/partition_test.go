package consumer

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/table"
)

// Rows of one key are in one partition, and rows without a key are distributed.
func TestPartitionBy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openConfig(t, s.Database(t), "orders", "bills")
		do(t, db,
			"ALTER TABLE bills ADD customer INT NULL",
			"CREATE TABLE customers (id INT PRIMARY KEY AUTO_INCREMENT, name VARBINARY(20) NULL)")
		for n := range 200 {
			publishKey(t, db, strconv.Itoa(n%7), "x")
			do(t, db,
				fmt.Sprintf("INSERT INTO bills (payload, customer, headers) VALUES ('x', %d, JSON_OBJECT('what', 'ü%d'))", n%7, n%5),
				fmt.Sprintf("INSERT INTO customers (name) VALUES ('ä%d')", n%7))
		}
		insert(t, db, "orders", numbers(1, 100)...) // without headers
		for _, c := range []struct{ topic, by, key, want string }{
			{"orders", "", "COALESCE(JSON_UNQUOTE(JSON_EXTRACT(headers, '$.key')), id)", "header key"},
			{"orders", "ID", "id", "column ID"},
			{"bills", "customer", "customer", "column customer"},
			{"bills", "what", "JSON_UNQUOTE(JSON_EXTRACT(headers, '$.what'))", "header what"},
			{"bills", "no 'such' ?", "id", "header no 'such' ?"},
			{"customers", "", "id", ""},
			{"customers", "Name", "name", "column Name"},
		} {
			described, err := table.Describe(t.Context(), db.Pool(), db.Name(), c.topic)
			require.NoError(t, err)
			of := asked(described, Options{Group: "g", PartitionBy: c.by})
			require.Equal(t, c.want, of.by)
			expression, err := of.expression(described, "id")
			require.NoError(t, err)
			var n struct{ Keys, Pairs, Parts int }
			require.NoError(t, db.Pool().Get(&n, "SELECT COUNT(DISTINCT k) AS `keys`, COUNT(DISTINCT k, part) AS pairs, COUNT(DISTINCT part) AS parts"+
				" FROM (SELECT "+c.key+" AS k, "+expression+" AS part FROM "+c.topic+") AS t"))
			require.Equal(t, n.Keys, n.Pairs, "%+v: a key is in two partitions", c)
			if n.Keys >= 100 {
				require.Greater(t, n.Parts, 50, "%+v", c)
			} else {
				require.Greater(t, n.Parts, n.Keys/2, "%+v", c)
			}

			// A member that has half of the partitions reads exactly these rows.
			var got collected
			o := Options{Group: c.topic + c.by, From: "beginning", MembersShare: true, PartitionBy: c.by, StopAtEnd: true}
			require.NoError(t, run(t, db, c.topic, o, got.handler()).wait(t))
			require.Len(t, got.ids(), mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM "+c.topic))
			for _, m := range got.all {
				require.NotEmpty(t, m.Payload)
			}
		}
		err := run(t, db, "customers", Options{Group: "x", MembersShare: true, PartitionBy: "nope"}, Each(func(context.Context, Message) error { return nil })).wait(t)
		require.ErrorIs(t, err, table.ErrNoColumn)
	})
}

// All members compute the same partition of a CHAR, whatever their sql_mode is.
func TestPartitionOfAPaddedColumn(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE codes (id INT PRIMARY KEY AUTO_INCREMENT, code CHAR(9))", "INSERT INTO codes (code) VALUES ('a')")
		described, err := table.Describe(t.Context(), db.Pool(), db.Name(), "codes")
		require.NoError(t, err)
		expression, err := asked(described, Options{Group: "g", PartitionBy: "code"}).expression(described, "id")
		require.NoError(t, err)
		query := "SELECT " + expression + " FROM codes"
		want := mysqltest.Value[int](t, db.Pool(), query)
		padded := newConn(t, db)
		onConn(t, padded, "SET sql_mode = 'PAD_CHAR_TO_FULL_LENGTH'")
		var got int
		require.NoError(t, padded.QueryRowContext(t.Context(), query).Scan(&got))
		require.Equal(t, want, got)
	})
}
