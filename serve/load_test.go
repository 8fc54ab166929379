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

// These variables make the test binary one of the processes of TestLoad: the server, or the probe.
const (
	loadEnv  = "MQNOTIFY_TEST_LOAD_DSN"
	probeEnv = "MQNOTIFY_TEST_PROBE_URL"
)

// serveForLoad runs the server in a process of its own, so that the test can measure its memory. It prints its address. value is
// the WriteTimeout and the DSN.
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

// probe requests the health of the server at url, and a page of a server that does nothing else, again and again. It uses a new
// connection each time, as a load balancer does. At the end it prints the longest time that each took. It is a process of its
// own, because the other clients of the test would delay it.
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

// child is one of the processes of the test.
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
		_ = c.Wait() // fails if end has already waited
	})
	return c
}

// line returns the next line that the process prints.
func (c *child) line(tb testing.TB) string {
	tb.Helper()
	text, err := c.out.ReadString('\n')
	require.NoError(tb, err, "the process wrote the reason to stderr")
	return strings.TrimSpace(text)
}

// end ends the process and returns the rest of its output.
func (c *child) end(tb testing.TB) string {
	tb.Helper()
	_ = c.in.Close()
	text, err := io.ReadAll(c.out)
	require.NoError(tb, err)
	require.NoError(tb, c.Wait())
	return string(text)
}

// resident returns the maximum memory of a process so far, in MiB.
func resident(tb testing.TB, pid int) int {
	tb.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(tb, err)
	_, rest, _ := strings.Cut(string(text), "VmHWM:")
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(tb, err)
	return kib / 1024
}

// readsNothing connects a client that requests all events of a topic and reads none.
func readsNothing(tb testing.TB, address string) net.Conn {
	tb.Helper()
	conn, err := net.Dial("tcp", address)
	require.NoError(tb, err)
	require.NoError(tb, conn.(*net.TCPConn).SetReadBuffer(4096))
	_, err = fmt.Fprint(conn, "GET /topics/orders/events?after=beginning HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(tb, err)
	return conn
}

// The server stays within its limits of memory and connections, answers health checks, and loses no published message, although
// there are streams that do not read, many concurrent publishers, idle sockets and large messages, all at once.
func TestLoad(t *testing.T) {
	mysqltest.NotShort(t, "TestFanOut")
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("memory is read from /proc")
	}
	streams, posts := mysqltest.Many(30, 60, 1000), mysqltest.Many(50, 60, 500)
	idle, large := mysqltest.Many(200, 300, 10_000), mysqltest.Many(1, 2, 12)
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
				} // otherwise the server refused the request and closed the connection before the client had sent it all
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
			require.NoError(t, ctx.Err(), "%d of %d messages have arrived", len(got), posts+large)
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
		if !racing { // the race detector multiplies memory and time
			assert.Less(t, used, 512)
			assert.Less(t, slowest-floor, time.Second, "compared with a server that does nothing else")
		}
		assert.LessOrEqual(t, most, 50+10+4, "those of the pool, of the readers and of the test")
		var n int
		require.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM orders"))
		assert.Equal(t, posts+large, n)
		hangUp() // otherwise the server waits for its slow clients
		server.end(t)
	})
}

// Clients that request old, large messages and do not read them leave the server within its memory. Another client gets all
// messages.
func TestLargeBacklog(t *testing.T) {
	mysqltest.NotShort(t, "TestSlowClientsHoldBoundedMemory and TestPageIsBoundedInBytes")
	if _, err := os.Stat("/proc/self/status"); err != nil {
		t.Skip("memory is read from /proc")
	}
	clients, large, size := mysqltest.Many(4, 12, 100), mysqltest.Many(3, 6, 12), mysqltest.Many(2<<20, 15<<20, 15<<20)
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		insert(t, db, "orders", slices.Repeat([]string{strings.Repeat("x", size)}, large)...)
		server := startChild(t, loadEnv, "3s "+config.FormatDSN())
		loaded := &site{url: "http://" + server.line(t), client: &http.Client{Transport: &http.Transport{}}}
		defer loaded.client.CloseIdleConnections()
		for range clients {
			conn := readsNothing(t, strings.TrimPrefix(loaded.url, "http://"))
			defer conn.Close()
		}
		mysqltest.Eventually(t, "all clients have joined", func() bool {
			return counted(t, loaded, `mqnotify_clients{topic="orders"}`) >= float64(clients)
		})
		r := loaded.events(t, "/topics/orders/events?after=beginning")
		began := time.Now()
		for n := 1; n <= large; {
			require.Less(t, time.Since(began), 5*long, "message %d has not arrived", n)
			kind, data := r.next()
			if kind == "end" || kind == "eof" {
				r = loaded.events(t, "/topics/orders/events?after=beginning", "Last-Event-ID: "+r.cursor)
				continue
			}
			require.True(t, strings.HasPrefix(data, fmt.Sprintf(`{"id":%d,`, n)), "%.80s", data)
			n++
		}
		used := resident(t, server.Process.Pid)
		t.Logf("%d clients, %d messages of %d MiB: %d MiB", clients, large, size>>20, used)
		if !racing { // the race detector multiplies memory
			assert.Less(t, used, 512)
		}
		r.cancel()
		server.end(t)
	})
}
