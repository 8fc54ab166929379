package examples_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// language is an interpreter and the file extension of its programs.
type language struct{ name, interpreter, end string }

// TestLanguages runs the examples of each language.
func TestLanguages(t *testing.T) {
	mysqltest.EachCase(t, []language{{"php", "php", ".php"}, {"python", "python3", ".py"}, {"node", "node", ".js"}}, func(t *testing.T, s *mysqltest.Server, l language) {
		t.Run(l.name, func(t *testing.T) {
			run := mysqltest.Interpreter(t, l.interpreter)
			if mysqltest.Long() {
				s = s.Start(t) // a server of its own, because the test kills it
			}
			config := s.Database(t)
			db := openDB(t, config, "order_events")
			require.NoError(t, wake.InstallAll(t.Context(), db, mysqltest.Logger(t, slog.LevelWarn), "order_events"))
			mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE customer_orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, item VARCHAR(100) NOT NULL)",
				"CREATE TABLE shipments (order_id BIGINT PRIMARY KEY)")
			lead(t, config, "order_events")
			account := s.User(t, config, "SELECT, INSERT, DELETE, EXECUTE ON `"+config.DBName+"`.*")
			program := func(name string, arguments ...string) *process {
				return prepare(t, account, run, append([]string{filepath.Join(l.name, name+l.end)}, arguments...)...)
			}
			testNotify(t, db, program)
			testShipping(t, s, db, program)
		})
	})
}

// lead starts a consumer and a listener, so that the programs wait for the leader's locks and do not poll. Their leader also
// makes the sessions of killed programs end soon: a session that polls ends only with its wait.
func lead(t *testing.T, config *mysql.Config, topic string) {
	t.Helper()
	db := openDB(t, config)
	c, err := consumer.New(db, topic, consumer.Options{Logger: mysqltest.Logger(t, slog.LevelWarn)})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := mysqltest.Result(func() error {
		return c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error { return nil }))
	})
	t.Cleanup(func() {
		cancel()
		require.NoError(t, mysqltest.Receive(t, ended))
	})
	_, err = notify.Listen(ctx, db, "anything")
	require.NoError(t, err)
	for _, table := range []string{topic, "mqnotify_notification"} {
		mysqltest.Eventually(t, "a session leads", func() bool {
			return mysqltest.Value[bool](t, db.Pool(), "SELECT IS_USED_LOCK(?) IS NOT NULL", waiting.WokenLocks(config.DBName, table)[0])
		})
	}
}

// prepare returns a program that is not started. It gets the server's address in the way that is usual in its language.
func prepare(t *testing.T, config *mysql.Config, interpreter string, arguments ...string) *process {
	t.Helper()
	p := newProcess(t, interpreter, arguments...)
	host, port, err := net.SplitHostPort(config.Addr)
	require.NoError(t, err)
	p.Env = append(p.Environ(), "DB_HOST="+host, "DB_PORT="+port, "DB_NAME="+config.DBName, "DB_USER="+config.User, "DB_PASSWORD="+config.Passwd)
	return p
}

// testNotify runs programs that listen and a program that notifies.
func testNotify(t *testing.T, db *notify.DB, program func(name string, arguments ...string) *process) {
	t.Helper()
	listeners := []*process{program("listen", "reload"), program("listen", "reload"), program("listen", "other")}
	for _, l := range listeners {
		l.start()
	}
	mysqltest.Eventually(t, "all programs listen", func() bool {
		return mysqltest.Value[int](t, db.Pool(), `SELECT COUNT(*) FROM information_schema.PROCESSLIST
			WHERE DB = DATABASE() AND USER <> SUBSTRING_INDEX(USER(), '@', 1) AND STATE IN ('User lock', 'User sleep')`) == len(listeners)
	})
	said := "O'Neill \\ ☕"
	for _, payload := range []string{"v42", said} {
		p := program("notify", "reload", payload)
		p.start()
		require.Zero(t, p.code())
	}
	for _, l := range listeners[:2] {
		l.says("v42\n" + said + "\n")
		l.kill()
	}
	require.Empty(t, listeners[2].said.String())
	listeners[2].kill()
	gone(t, db)
}

// gone waits until the sessions of the killed programs end. Without a leader they would end only with their waits.
func gone(t *testing.T, db *notify.DB) {
	t.Helper()
	mysqltest.Eventually(t, "the sessions of the programs end", func() bool {
		return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND USER <> SUBSTRING_INDEX(USER(), '@', 1)") == 0
	})
}

// testShipping runs a program that stores orders and two that ship them. It kills them at random, and in the long form the
// server too. In the end each order is shipped once.
func testShipping(t *testing.T, s *mysqltest.Server, db *notify.DB, program func(name string, arguments ...string) *process) {
	t.Helper()
	random, many, kills := mysqltest.Random(t), mysqltest.Many(60, 120, 10_000), mysqltest.Many(2, 4, 40)
	count := func(table string) int { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM "+table) }
	names := []string{"publish", "consume", "consume"}
	running := make([]*process, len(names))
	begin := func(i int) {
		running[i] = program(names[i])
		if names[i] == "publish" {
			var items strings.Builder
			for n := range many - count("customer_orders") {
				fmt.Fprintf(&items, "item %d\n", n)
			}
			running[i].Stdin = io.NopCloser(strings.NewReader(items.String()))
		}
		running[i].start()
	}
	for i := range names {
		begin(i)
	}
	killed := make([]bool, len(names))
	// mend restarts the programs that ended because they, or the server, were killed. No program may end otherwise.
	mend := func() {
		for i := range running {
			if !running[i].hasEnded() || names[i] == "publish" && count("customer_orders") >= many {
				continue
			}
			if !killed[i] && !mysqltest.Long() {
				require.Fail(t, "a program has ended", running[i].said.String())
			}
			killed[i] = false
			begin(i)
		}
	}
	for kill := 1; kill <= kills; kill++ {
		mysqltest.Eventually(t, "orders are shipped", func() bool {
			mend()
			return count("shipments") >= many*kill/(kills+1)
		})
		if mysqltest.Long() && kill%4 == 0 {
			s.Kill()
			s.Restart(t)
			continue
		}
		i := random.IntN(len(running))
		killed[i] = true
		running[i].kill()
	}
	mysqltest.Eventually(t, "all orders are stored and shipped", func() bool {
		mend()
		return count("shipments") >= many && running[0].hasEnded()
	})
	t.Logf("%d orders, %d kills", many, kills)
	mysqltest.Eventually(t, "no message is left", func() bool { return count("order_events") == 0 })
	// A killed program may have stored an order after the orders were counted for its successor.
	all := count("customer_orders")
	assert.GreaterOrEqual(t, all, many)
	assert.Equal(t, all, count("customer_orders JOIN shipments ON customer_orders.id = shipments.order_id"))
	assert.Equal(t, all, count("shipments"))
	// One more order comes while both consumers wait.
	mysqltest.Eventually(t, "both wait for the lock", func() bool {
		return mysqltest.Value[int](t, db.Pool(), `SELECT COUNT(*) FROM information_schema.PROCESSLIST
			WHERE DB = DATABASE() AND USER <> SUBSTRING_INDEX(USER(), '@', 1) AND STATE = ?`, mysqltest.WaitsForLock) == 2
	})
	last := program("publish")
	last.Stdin = strings.NewReader("the last\n")
	last.start()
	require.Zero(t, last.code(), last.said.String())
	mysqltest.Eventually(t, "the last order is shipped", func() bool { return count("shipments") == all+1 })
	for i := range running {
		running[i].kill()
	}
	gone(t, db)
}
