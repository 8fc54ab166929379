package serve

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// What makes this binary one of the processes of TestLoad: the server, or the probe.
const (
	loadEnv  = "MQNOTIFY_TEST_LOAD_DSN"
	probeEnv = "MQNOTIFY_TEST_PROBE_URL"
)

// serveForLoad is the server in a process of its own, so that its memory can be measured. It prints its address. value is the
// WriteTimeout and the DSN.
func serveForLoad(value string) error {
	timeout, dsn, _ := strings.Cut(value, " ")
	writeTimeout, err := time.ParseDuration(timeout)
	if err != nil {
		return err
	}
	debug.SetMemoryLimit(400 << 20) // as mqnotify serve does
	db, err := notify.Open(dsn)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s, err := New(db, Options{
		Topics: []string{"orders"}, Logger: quiet, MaxBody: 16 << 20, WriteTimeout: writeTimeout, Ready: func() { fmt.Println(listener.Addr()) },
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		untilTestEnds()
		cancel()
	}()
	return s.Serve(ctx, listener, nil)
}

// untilTestEnds waits until the test closes this process's stdin, or dies.
func untilTestEnds() { _, _ = io.Copy(io.Discard, os.Stdin) }

// probe asks for the health of the server at url and of a server that does nothing else, again and again, each time over a
// new connection, as a load balancer does. At the end it prints the longest time that each took. It is a process of its own, because the
// test's other clients would delay it.
func probe(url string) error {
	bare := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer bare.Close()
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		untilTestEnds()
		cancel()
	}()
	fmt.Println("ready")
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: long}
	var slowest, floor time.Duration
	for ctx.Err() == nil {
		for url, most := range map[string]*time.Duration{url + "/healthz": &slowest, bare.URL: &floor} {
			began := time.Now()
			response, err := client.Get(url)
			if err != nil {
				return err
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusOK {
				return fmt.Errorf("%s: %s", url, response.Status)
			}
			*most = max(*most, time.Since(began))
		}
		<-time.After(20 * time.Millisecond)
	}
	fmt.Println(int64(slowest), int64(floor))
	return nil
}

// child is one of the test's processes.
type child struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

func startChild(tb testing.TB, env, value string) *child {
	tb.Helper()
	c := &child{Cmd: exec.Command(os.Args[0])}
	c.Env = append(os.Environ(), env+"="+value)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(tb, err)
	out, err := c.StdoutPipe()
	require.NoError(tb, err)
	c.in, c.out = in, bufio.NewReader(out)
	require.NoError(tb, c.Start())
	tb.Cleanup(func() {
		_ = in.Close()
		_ = c.Wait() // unless end has
	})
	return c
}

// line is the next line that it prints.
func (c *child) line(tb testing.TB) string {
	tb.Helper()
	text, err := c.out.ReadString('\n')
	require.NoError(tb, err, "the process has said why")
	return strings.TrimSpace(text)
}

// end ends it, and returns what else it prints.
func (c *child) end(tb testing.TB) string {
	tb.Helper()
	_ = c.in.Close()
	text, err := io.ReadAll(c.out)
	require.NoError(tb, err)
	require.NoError(tb, c.Wait())
	return string(text)
}

// resident is the most memory that a process has had so far, in MiB.
func resident(tb testing.TB, pid int) int {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(tb, err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(tb, err)
	return kib / 1024
}

// readsNothing is a client that asks for a topic's events from their beginning, and reads none.
func readsNothing(tb testing.TB, address string) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(tb, err)
	require.NoError(tb, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprint(conn, "GET /topics/orders/events?after=beginning HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(tb, err)
	return conn
}

// Streams that do not read, many that publish at the same time, idle sockets and large messages, all at once, leave the server
// within its memory and its connections; health checks are answered, and nothing that was published is lost.
func TestLoad(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("memory is read from /proc")
	}
	streams, posts := mysqltest.Size(50, 100, 1000), mysqltest.Size(50, 100, 500)
	idle, large := mysqltest.Size(200, 500, 10_000), mysqltest.Size(1, 2, 12)
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		server := startChild(t, loadEnv, "10s "+config.FormatDSN())
		address := server.line(t)
		loaded := &site{url: "http://" + address, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: posts}}}
		defer loaded.client.CloseIdleConnections()

		var dialed []net.Conn
		hangUp := func() {
			for _, conn := range dialed {
				_ = conn.Close()
			}
		}
		defer hangUp()
		for range streams {
			dialed = append(dialed, readsNothing(t, address))
		}
		for range idle {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			dialed = append(dialed, conn)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 5*long)
		defer cancel()
		var watching, publishing sync.WaitGroup
		most := 0
		watching.Go(func() {
			for ctx.Err() == nil {
				var n int
				if err := db.Pool().GetContext(ctx, &n, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ?", config.DBName); err == nil {
					most = max(most, n)
				}
				<-time.After(20 * time.Millisecond)
			}
		})
		health := startChild(t, probeEnv, loaded.url)
		require.Equal(t, "ready", health.line(t))
		publish := func(payload, key string) {
			for ctx.Err() == nil {
				request, err := http.NewRequestWithContext(ctx, http.MethodPost, loaded.url+"/topics/orders/messages", strings.NewReader(payload))
				if !assert.NoError(t, err) {
					return
				}
				request.Header.Set("Idempotency-Key", key)
				response, err := loaded.client.Do(request)
				if err == nil {
					_ = response.Body.Close()
					if response.StatusCode == http.StatusCreated || response.StatusCode == http.StatusOK {
						return
					}
					if !assert.Equal(t, http.StatusServiceUnavailable, response.StatusCode) {
						return
					}
				} // else it was refused, and the connection closed, before the client had sent all and read the answer
				<-time.After(100 * time.Millisecond)
			}
			assert.Fail(t, "not published in time", key)
		}
		for n := range posts {
			publishing.Go(func() { publish(strings.Repeat("x", 1000), fmt.Sprint("small", n)) })
		}
		for n := range large {
			publishing.Go(func() { publish(strings.Repeat("y", 16<<20-1000), fmt.Sprint("large", n)) })
		}
		publishing.Wait()
		if t.Failed() {
			return
		}
		got := map[uint64]bool{}
		r := loaded.events(t, "/topics/orders/events?after=beginning")
		for len(got) < posts+large {
			require.NoError(t, ctx.Err(), "%d of %d messages have come", len(got), posts+large)
			kind, data := r.next()
			if kind == "end" || kind == "eof" {
				r = loaded.events(t, "/topics/orders/events", "Last-Event-ID: "+r.cursor)
				continue
			}
			var id uint64
			_, err := fmt.Sscanf(data, `{"id":%d,`, &id)
			require.NoError(t, err)
			got[id] = true
		}
		cancel()
		watching.Wait()
		used := resident(t, server.Process.Pid)
		var slowest, floor time.Duration
		_, err := fmt.Sscan(health.end(t), &slowest, &floor)
		require.NoError(t, err)
		t.Logf("%d streams, %d posts, %d idle, %d of 16 MiB: %d MiB, %d connections, /healthz within %v, a server that does nothing else %v",
			streams, posts, idle, large, used, most, slowest, floor)
		if !racing { // the detector takes several times the memory and the time
			assert.Less(t, used, 512)
			assert.Less(t, slowest-floor, time.Second, "on a machine that other tests use too")
		}
		assert.LessOrEqual(t, most, 50+10+4, "the pool, the readers' own, and the test's")
		var n int
		require.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM orders"))
		assert.Equal(t, posts+large, n)
		hangUp() // the server would wait for its slow clients
		server.end(t)
	})
}

// Clients that come for large messages of long ago and do not read leave the server within its memory, and another client gets
// the messages all the same.
func TestLargeBacklog(t *testing.T) {
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("memory is read from /proc")
	}
	clients, large := mysqltest.Size(8, 12, 100), mysqltest.Size(4, 6, 12)
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		insert(t, db, "orders", slices.Repeat([]string{strings.Repeat("x", 15<<20)}, large)...)
		server := startChild(t, loadEnv, "3s "+config.FormatDSN())
		loaded := &site{url: "http://" + server.line(t), client: &http.Client{Transport: &http.Transport{}}}
		defer loaded.client.CloseIdleConnections()
		for range clients {
			conn := readsNothing(t, strings.TrimPrefix(loaded.url, "http://"))
			defer conn.Close()
		}
		mysqltest.Eventually(t, "all are there", func() bool {
			return counted(t, loaded, `mqnotify_clients{topic="orders"}`) >= float64(clients)
		})
		r := loaded.events(t, "/topics/orders/events?after=beginning")
		began := time.Now()
		for n := 1; n <= large; {
			require.Less(t, time.Since(began), 5*long, "message %d has not come", n)
			kind, data := r.next()
			if kind == "end" || kind == "eof" {
				r = loaded.events(t, "/topics/orders/events?after=beginning", "Last-Event-ID: "+r.cursor)
				continue
			}
			require.True(t, strings.HasPrefix(data, fmt.Sprintf(`{"id":%d,`, n)), "%.80s", data)
			n++
		}
		used := resident(t, server.Process.Pid)
		t.Logf("%d clients, %d messages of 15 MiB: %d MiB", clients, large, used)
		if !racing { // the detector takes several times the memory
			assert.Less(t, used, 512)
		}
		r.cancel()
		server.end(t)
	})
}
