package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestTail(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, `CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, d DECIMAL(30,2), ts DATETIME(6),
			j JSON, b BLOB, s VARCHAR(20) CHARACTER SET utf8mb4)`)
		require.Empty(t, succeed(t, config, "tail", "t"))
		mysqltest.Exec(t, db, "INSERT INTO t (id) VALUES (1)")
		mysqltest.Exec(t, db, `INSERT INTO t VALUES (18446744073709551614, 1234567890123456789.10, '2026-01-31 08:00:00.000001', '{"a": [1, 2]}', X'00FF', 'ö"<')`)
		last := `{"id":18446744073709551614,"d":"1234567890123456789.10","ts":"2026-01-31T08:00:00.000001Z","j":{"a": [1, 2]},"b":"AP8=","s":"ö\"<"}` + "\n"
		require.Equal(t, `{"id":1,"d":null,"ts":null,"j":null,"b":null,"s":null}`+"\n"+last, succeed(t, config, "tail", "t"))
		require.Equal(t, last, succeed(t, config, "tail", "-n", "1", "t"))
		require.Empty(t, succeed(t, config, "tail", "-n", "0", "t"))
		require.Equal(t, `{"s":null,"id":1}`+"\n", succeed(t, config, "tail", "t", "--columns", "s,id", "--where", "d IS NULL -- no comment ends it"))
	})
}

func TestTailCounts(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE t (id INT PRIMARY KEY, other INT NOT NULL UNIQUE)")
		for n := 1; n <= 30; n++ {
			mysqltest.Exec(t, db, "INSERT INTO t VALUES (?, ?)", 3*n, 100-n)
		}
		require.Len(t, words(succeed(t, config, "tail", "t")), 10)
		require.Equal(t, "{\"id\":87}\n{\"id\":90}\n", succeed(t, config, "tail", "t", "-n2", "--columns", "id"))
		require.Equal(t, "{\"id\":6}\n{\"id\":3}\n", succeed(t, config, "tail", "t", "-n2", "--columns", "id", "--id-column", "other"))
	})
}

func TestTailFollows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, n INT)")
		mysqltest.Exec(t, db, "INSERT INTO t (n) VALUES (1), (2)")
		for _, order := range []string{"arrival", "strict"} {
			f := background(t, config, "tail", "-f", "-n", "1", "t", "--order", order)
			f.out.contains(t, "\n")
			before := f.out.String()
			mysqltest.Exec(t, db, "INSERT INTO t (n) VALUES (3), (4)")
			f.out.contains(t, `"n":4}`)
			r := f.interrupt(t)
			require.Equal(t, exitDone, r.code)
			require.Regexp(t, `^\{"id":\d+,"n":\d+\}\n\{"id":\d+,"n":3\}\n\{"id":\d+,"n":4\}\n$`, r.out)
			require.Contains(t, r.out, before)
			mysqltest.Exec(t, db, "DELETE FROM t WHERE n = 4")
		}
	})
}

func TestTailFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, name VARCHAR(9))")
		mysqltest.Exec(t, db, "CREATE TABLE nokey (name VARCHAR(9))")
		mysqltest.Exec(t, db, "CREATE VIEW v AS SELECT * FROM t")
		for want, args := range map[string][]string{
			"no table `nosuch`":      {"nosuch"},
			"did you mean `nokey`":   {"nokeys"},
			"no integer key":         {"nokey"},
			"is a view":              {"v"},
			"no column `nam`":        {"t", "--columns", "nam"},
			"`name` of table":        {"t", "--id-column", "name"},
			"check --where":          {"t", "--where", "nonsense ="},
			"no column `id; DROP t`": {"t", "--columns", "id; DROP t"},
			"no table `t; DROP` in":  {"t; DROP"},
			"no table `a``b"[:13]:    {"a`b"},
		} {
			message := fail(t, exitFailed, config, append([]string{"tail"}, args...)...)
			require.Contains(t, message, want)
			require.Regexp(t, `^mqnotify: [^\n]+\n$`, message, "the error is one line")
		}
	})
}

// Keys without AUTO_INCREMENT may come in any order. tail -f warns, and the other commands refuse such tables. capture makes
// messages of the rows in the order of their arrival.
func TestKeysInAnyOrder(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE t (id BIGINT PRIMARY KEY)")
		for _, args := range [][]string{{"consume", "t", "--group", "g"}, {"consume", "t"}, {"bridge", "t", "--group", "g", "--to", "exec:true"}, {"serve", "t"}} {
			message := fail(t, exitFailed, config, args...)
			require.Contains(t, message, "AUTO_INCREMENT")
			require.Contains(t, message, "mqnotify capture install t")
		}
		f := background(t, config, "tail", "-f", "t")
		f.err.contains(t, "the key is not AUTO_INCREMENT")
		require.Equal(t, exitDone, f.interrupt(t).code)

		succeed(t, config, "capture", "install", "t")
		mysqltest.Exec(t, db, "INSERT INTO t VALUES (1002)")
		c := background(t, config, "consume", "t_changes", "--group", "g", "--from", "beginning")
		c.out.contains(t, `1002`)
		mysqltest.Exec(t, db, "INSERT INTO t VALUES (1001)")
		c.out.contains(t, `1001`)
		require.Equal(t, exitDone, c.interrupt(t).code)
	})
}

// tail ends with the reason when its table is dropped.
func TestTailOfADroppedTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		mysqltest.Exec(t, db, "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)")
		mysqltest.Exec(t, db, "INSERT INTO t VALUES ()")
		f := background(t, config, "tail", "-f", "t")
		f.out.contains(t, `{"id":1}`)
		mysqltest.Exec(t, db, "DROP TABLE t")
		r := f.wait(t)
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.err, "no table `t`")
	})
}
