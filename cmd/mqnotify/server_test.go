//go:build unix

package main

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Consumers, listeners, workers and locks survive on a server that ends idle connections after 5 s.
func TestShortWaitTimeout(t *testing.T) {
	mysqltest.NotShort(t, "core.TestWaitLongerThanTheIdleTimeout and doctor.TestShortTimeouts")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--wait-timeout=5", "--interactive-timeout=5")
		config, db := database(t, own, "orders")
		db.SetMaxIdleConns(-1) // the server would end idle connections
		succeed(t, config, "init", "--queue", "mail")
		consume := background(t, config, "consume", "orders", "--group", "g", "--format", "payload", "--log-level", "debug")
		consume.err.contains(t, "msg=reading")
		listen := background(t, config, "listen", "reload")
		listen.err.contains(t, "msg=listening")
		work := background(t, config, "work", "mail", "--", "cat")
		work.err.contains(t, "waiting for tasks")
		var locks []*process // processes, because a lock forwards the signals of its process
		for _, kind := range lockKinds {
			p := launch(t, config, nil, "lock", "x", "--kind", kind, "--", "sh", "-c", "trap 'exit 9' TERM; echo held; while :; do sleep 0.05; done")
			p.out.contains(t, "held\n")
			locks = append(locks, p)
		}
		for range 2 { // waits two idle timeouts of the server
			endsIdle(t, db)
		}
		succeed(t, config, "produce", "orders", "one")
		consume.out.contains(t, "one\n")
		succeed(t, config, "notify", "reload", "two")
		listen.out.contains(t, "reload two\n")
		succeed(t, config, "enqueue", "mail", "three\n")
		work.out.contains(t, "three\n")
		for i, kind := range lockKinds {
			fail(t, exitNotGot, config, "lock", "x", "--kind", kind, "--timeout", "0s", "--", "true")
			locks[i].signal(t, syscall.SIGTERM)
			require.Equal(t, 9, locks[i].code(t), locks[i].err.String())
		}
		for _, r := range []*running{consume, listen, work} {
			require.Equal(t, exitDone, r.interrupt(t).code, r.err.String())
			require.NotContains(t, r.err.String(), "level=WARN")
		}
	})
}

// endsIdle makes an idle connection and returns when the server has ended it.
func endsIdle(tb testing.TB, db *sqlx.DB) {
	tb.Helper()
	conn, err := db.Conn(tb.Context())
	require.NoError(tb, err)
	defer func() { _ = conn.Close() }() // fails, because the connection is broken
	var id int
	require.NoError(tb, conn.QueryRowContext(tb.Context(), "SELECT CONNECTION_ID()").Scan(&id))
	require.Eventually(tb, func() bool {
		return mysqltest.Value[int](tb, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ?", id) == 0
	}, patience, 50*time.Millisecond)
}

// On a server that stores names in lower case, every spelling is the same topic, also for offsets, triggers, the flag and status.
func TestNamesFolded(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--lower-case-table-names=1")
		config, db := database(t, own)
		succeed(t, config, "init", "Orders")
		succeed(t, config, "produce", "ORDERS", "one")
		upper := config.Clone()
		upper.DBName = strings.ToUpper(config.DBName)
		consume := background(t, upper, "consume", "OrderS", "--group", "g", "--from", "beginning", "--format", "payload")
		consume.out.contains(t, "one\n")
		consume.err.contains(t, "mode=trigger")
		mysqltest.Exec(t, db, "INSERT INTO oRDERS (payload) VALUES ('two')")
		consume.out.contains(t, "two\n")
		require.Equal(t, exitDone, consume.interrupt(t).code)
		require.Empty(t, succeed(t, config, "consume", "orders", "--group", "g", "--stop-at-end", "--format", "payload"))
		require.Equal(t, []string{"orders"}, mysqltest.Values[string](t, db, "SELECT DISTINCT topic FROM mqnotify_offset"))
		require.Contains(t, succeed(t, config, "status", "OrDeRs"), "orders in ")
		for _, name := range []string{"Orders", "ORDERS"} { // the second run changes nothing
			succeed(t, config, "init", "--trigger", name)
		}
		mysqltest.Exec(t, db, "INSERT INTO oRDERS (payload) VALUES ('three')")
		require.Equal(t, "1\n", succeed(t, config, "flag", "ORderS"))
	})
}

// Workers, listeners and consumers survive while the server is read-only, and continue when it takes writes again.
func TestReadOnlyForAWhile(t *testing.T) {
	mysqltest.NotShort(t, "TestReadOnlyServer")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config, db := database(t, own, "orders")
		succeed(t, config, "init", "--queue", "mail")
		user := own.User(t, config, "ALL ON "+config.DBName+".*")
		consume := background(t, user, "consume", "orders", "--group", "g", "--format", "payload", "--log-level", "debug")
		consume.err.contains(t, "msg=reading")
		listen := background(t, user, "listen", "reload")
		listen.err.contains(t, "msg=listening")
		work := background(t, user, "work", "mail", "--", "cat")
		work.err.contains(t, "waiting for tasks")
		succeed(t, user, "enqueue", "mail", "first task\n") // a worker ends if it has never reached a server that takes writes
		work.out.contains(t, "first task\n")
		for n := range 3 {
			mysqltest.Exec(t, db, "SET GLOBAL read_only = 1")
			require.Contains(t, fail(t, exitFailed, user, "produce", "orders", "x"), "connect to the primary")
			require.Contains(t, fail(t, exitFailed, user, "enqueue", "mail", "x"), "connect to the primary")
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES (?)", fmt.Sprint("row ", n, "\n")) // root can write
			mysqltest.Exec(t, db, "SET GLOBAL read_only = 0")
			consume.out.contains(t, fmt.Sprint("row ", n, "\n"))
			succeed(t, user, "enqueue", "mail", fmt.Sprint("task ", n, "\n"))
			succeed(t, user, "notify", "reload", fmt.Sprint("note ", n))
			work.out.contains(t, fmt.Sprint("task ", n, "\n"))
			listen.out.contains(t, fmt.Sprint("note ", n, "\n"))
		}
		for _, r := range []*running{consume, listen, work} {
			require.Equal(t, exitDone, r.interrupt(t).code, r.err.String())
		}
		require.Empty(t, succeed(t, user, "consume", "orders", "--group", "g", "--stop-at-end"), "the offset was stored")
	})
}

// Every row comes once while a LOAD DATA with earlier ids runs. The rows of the LOAD DATA come after its commit, in tables with
// partitions as well.
func TestLoadData(t *testing.T) {
	mysqltest.NotShort(t, "TestConsumeAnyTable")
	const loads, half, inserts = 3, 200, 20
	mysqltest.EachCase(t, []string{"", " PARTITION BY HASH (id) PARTITIONS 4", " PARTITION BY RANGE (id) (PARTITION a VALUES LESS THAN (1000), PARTITION b VALUES LESS THAN MAXVALUE)"},
		func(t *testing.T, shared *mysqltest.Server, partitions string) {
			s := shared.Start(t, "--innodb-autoinc-lock-mode=2", "--local-infile=1") // otherwise an INSERT waits for the LOAD DATA
			config, db := database(t, s)
			mysqltest.Exec(t, db, "CREATE TABLE items (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, note VARCHAR(20) NOT NULL)"+partitions)
			succeed(t, config, "wake", "install", "items")
			consume := background(t, config, "consume", "items", "--group", "g", "--from", "beginning", "--format", "{{.ID}}\n", "--limit", fmt.Sprint(loads*(2*half+inserts)))
			for range loads {
				before := mysqltest.Value[int](t, db, "SELECT COUNT(*) FROM items")
				goOn := make(chan struct{})
				lines := strings.Repeat("loaded\n", half)
				mysql.RegisterReaderHandler(t.Name(), func() io.Reader {
					return io.MultiReader(strings.NewReader(lines), &laterReader{goOn, strings.NewReader(lines)})
				})
				loaded := make(chan error, 1)
				go func() {
					_, err := db.ExecContext(context.WithoutCancel(t.Context()), "LOAD DATA LOCAL INFILE 'Reader::"+t.Name()+"' INTO TABLE items (note)")
					loaded <- err
				}()
				mysqltest.Eventually(t, "half of the rows are inserted", func() bool { return dirtyCount(t, db.DB) == before+half })
				for range inserts { // meanwhile the consumer reads the gaps several times
					result, err := db.ExecContext(t.Context(), "INSERT INTO items (note) VALUES ('inserted')")
					require.NoError(t, err)
					id, err := result.LastInsertId()
					require.NoError(t, err)
					consume.out.contains(t, fmt.Sprint(id, "\n"))
				}
				close(goOn)
				require.NoError(t, mysqltest.Receive(t, loaded))
			}
			r := consume.wait(t)
			require.Equal(t, exitDone, r.code, r.err)
			got := words(r.out)
			want := mysqltest.Values[string](t, db, "SELECT id FROM items")
			slices.Sort(got)
			slices.Sort(want)
			require.Equal(t, want, got)
		})
}

// laterReader blocks its first read until goOn is closed.
type laterReader struct {
	goOn chan struct{}
	io.Reader
}

func (r *laterReader) Read(p []byte) (int, error) {
	<-r.goOn
	return r.Reader.Read(p)
}

// dirtyCount returns the number of rows, including uncommitted ones.
func dirtyCount(tb testing.TB, db *sql.DB) (n int) {
	tb.Helper()
	tx, err := db.BeginTx(tb.Context(), &sql.TxOptions{Isolation: sql.LevelReadUncommitted})
	require.NoError(tb, err)
	defer func() { require.NoError(tb, tx.Rollback()) }()
	require.NoError(tb, tx.QueryRowContext(tb.Context(), "SELECT COUNT(*) FROM items").Scan(&n))
	return n
}
