package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Rows go to stdout and into a file once and in their order, and the next run continues after them.
func TestBridge(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "one", "two")
		out := succeed(t, config, "bridge", "orders", "--group", "g", "--to", "stdout", "--stop-at-end")
		require.Equal(t, succeed(t, config, "consume", "orders", "--from", "beginning", "--stop-at-end"), out)
		require.Empty(t, succeed(t, config, "bridge", "orders", "--group", "g", "--to", "stdout", "--stop-at-end"))

		path := filepath.Join(t.TempDir(), "orders.jsonl")
		b := background(t, config, "bridge", "orders", "--group", "file", "--to", "file://"+path)
		lines := func(n int) {
			t.Helper()
			require.Eventually(t, func() bool {
				text, _ := os.ReadFile(path)
				return strings.Count(string(text), "\n") == n
			}, patience, 25*time.Millisecond)
		}
		lines(2)
		succeed(t, config, "produce", "orders", "three")
		lines(3)
		require.Equal(t, exitDone, b.interrupt(t).code)
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, out, string(text[:len(out)]))
	})
}

// If a broker refuses the credentials, the error says so and does not show them.
func TestBridgeRefused(t *testing.T) {
	broker := brokertest.Redis(t)
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		secret := brokertest.Password + "x"
		url := strings.Replace(broker.URL(""), brokertest.Password, secret, 1)
		message := fail(t, exitFailed, config, "bridge", "orders", "--group", "g", "--to", url)
		require.Contains(t, message, "the credentials are refused")
		require.NotContains(t, message, secret)
		require.NotContains(t, message, "--dsn", "the error is not of the database")
	})
}

// The bridge logs the progress of a backlog. After an interrupt, the next run continues where it stopped.
func TestBridgeProgress(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		all := mysqltest.Many(2_000, 10_000, 10_000)
		rows := strings.TrimSuffix(strings.Repeat("('x'),", all), ",")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES "+rows)
		args := []string{"bridge", "orders", "--group", "g", "--to", "stdout", "--stop-at-end"}
		first := background(t, config, args...)
		first.err.contains(t, "msg=backlog")
		r := first.interrupt(t)
		require.Equal(t, exitDone, r.code)
		require.Regexp(t, fmt.Sprintf(`msg=backlog topic=orders sent=\d+ refused=0 id=\d+ head=%d percent=\d+\.\d rows_per_second=\d+ left=\S+`, all), r.err)
		sent := strings.Count(r.out, "\n")
		rest := succeed(t, config, args...)
		require.Equal(t, all, sent+strings.Count(rest, "\n"))
		require.True(t, rest == "" || strings.HasPrefix(rest, fmt.Sprintf(`{"id":%d,`, sent+1)), "the second run continues after the first")
	})
}

// The error names the problem of a destination without the password, and no message is lost.
func TestBridgeFails(t *testing.T) {
	const away = "127.0.0.1:1" // a privileged port: no process listens there, and no test can begin to
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "one")
		secret := brokertest.Password + "x"
		for url, want := range map[string]string{
			"redis://me:" + secret + "@" + away:                 "connection refused",
			"nats://me:" + secret + "@" + away:                  "connect",
			"exec:/no/such/program":                             "no such file",
			"file://" + filepath.Join(t.TempDir(), "none", "f"): "no such file",
		} {
			message := fail(t, exitFailed, config, "bridge", "orders", "--group", "g", "--to", url)
			require.Contains(t, message, want)
			require.NotContains(t, message, secret)
			require.NotContains(t, message, "--dsn", "the error is not of the database")
		}
		for _, url := range []string{"ftp://me:" + secret + "@host/", "nats://me:" + secret + "@ho st", "redis://me:" + secret + "@host/?x=y"} {
			message := fail(t, exitUsage, config, "bridge", "orders", "--group", "g", "--to", url)
			require.NotContains(t, message, secret)
		}
		require.Contains(t, succeed(t, config, "bridge", "orders", "--group", "g", "--to", "stdout", "--stop-at-end"), `"one"`)
	})
}

// A broker's messages come into a topic. A second import of them stores none twice.
func TestImport(t *testing.T) {
	broker := brokertest.Redis(t)
	options, err := redis.ParseURL(broker.URL(""))
	require.NoError(t, err)
	options.ReadTimeout, options.MaxRetries = patience, -1 // a retry after a timeout would add its entry twice
	client := redis.NewClient(options)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		stream := config.DBName // the servers share the broker
		for n := range 3 {
			require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, Values: []any{"payload", n, "kind", "paid"}}).Err())
		}
		count := func(n string) func() bool {
			return func() bool { return mysqltest.Values[string](t, db, "SELECT COUNT(*) FROM orders")[0] == n }
		}
		for _, group := range []string{"a", "b"} { // the second group gets all messages again
			i := background(t, config, "import", "--from", broker.URL("stream="+stream+"&group="+group), "--into", "orders")
			require.Eventually(t, count("3"), patience, 25*time.Millisecond)
			require.Eventually(t, func() bool {
				pending, err := client.XInfoGroups(t.Context(), stream).Result()
				return err == nil && pending[len(pending)-1].Name == group && pending[len(pending)-1].Lag == 0 && pending[len(pending)-1].Pending == 0
			}, patience, 25*time.Millisecond)
			r := i.interrupt(t)
			require.Equal(t, exitDone, r.code)
			require.NotContains(t, r.err, brokertest.Password)
		}
		require.Equal(t, "3", mysqltest.Values[string](t, db, "SELECT COUNT(*) FROM orders")[0])
		require.Contains(t, succeed(t, config, "consume", "orders", "--from", "beginning", "--stop-at-end"), `"headers":{"kind":"paid"},"payload":"0"`)
		secret := brokertest.Password + "x"
		message := fail(t, exitFailed, config, "import", "--into", "orders", "--from", strings.Replace(broker.URL("stream="+stream), brokertest.Password, secret, 1))
		require.Contains(t, message, "the credentials are refused")
		require.NotContains(t, message, secret)
	})
}

// Messages go to a broker, and come back, if ca= names the private authority that signed its certificate. Without ca= the error
// says to add it.
func TestBridgeTLS(t *testing.T) {
	c := brokertest.NewCertificate(t)
	broker := brokertest.WithTLS(t, c, func(tb testing.TB) *brokertest.Broker { return brokertest.Redis(tb) })
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders", "copies")
		url := broker.URL("stream=" + config.DBName) // the servers share the broker
		secure := url + "&ca=" + c.Authority
		succeed(t, config, "produce", "orders", "one", "two")
		succeed(t, config, "bridge", "orders", "--group", "g", "--to", secure, "--stop-at-end")
		i := background(t, config, "import", "--from", secure, "--into", "copies")
		require.Eventually(t, func() bool { return mysqltest.Values[string](t, db, "SELECT COUNT(*) FROM copies")[0] == "2" }, patience, 25*time.Millisecond)
		require.Equal(t, exitDone, i.interrupt(t).code)
		for _, args := range [][]string{{"bridge", "orders", "--group", "h", "--to"}, {"import", "--into", "copies", "--from"}} {
			message := fail(t, exitFailed, config, append(args, url)...)
			require.Contains(t, message, "ca=/path.pem")
			require.NotContains(t, message, brokertest.Password)
			require.NotContains(t, message, "msg=import") // the import has not begun
			message = fail(t, exitUsage, config, append(args, url+"&ca=/no/such.pem")...)
			require.Contains(t, message, "no such file")
			require.NotContains(t, message, brokertest.Password)
		}
	})
}
