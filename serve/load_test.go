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

const loadEnv = "MQNOTIFY_TEST_LOAD_DSN"

// serveForLoad is the server in a process of its own, so that its memory can be measured. It prints its address.
func serveForLoad(dsn string) error {
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
	s, err := New(db, Options{Topics: []string{"orders"}, Logger: quiet, MaxBody: 16 << 20, Ready: func() { fmt.Println(listener.Addr()) }})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it, or dies
		cancel()
	}()
	return s.Serve(ctx, listener, nil)
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
		program := exec.Command(os.Args[0])
		program.Env = append(os.Environ(), loadEnv+"="+config.FormatDSN())
		program.Stderr = os.Stderr
		in, err := program.StdinPipe()
		require.NoError(t, err)
		out, err := program.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, program.Start())
		ended := sync.OnceValue(func() error {
			_ = in.Close()
			return program.Wait()
		})
		defer func() { _ = ended() }()
		address, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		address = strings.TrimSpace(address)
		loaded := &site{url: "http://" + address, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: posts}}}
		defer loaded.client.CloseIdleConnections()

		var dialed []net.Conn
		hangUp := func() {
			for _, conn := range dialed {
				_ = conn.Close()
			}
		}
		defer hangUp()
		dial := func() net.Conn {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			dialed = append(dialed, conn)
			return conn
		}
		for range streams {
			conn := dial()
			require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
			_, err := fmt.Fprint(conn, "GET /topics/orders/events?after=beginning HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
		}
		for range idle {
			dial()
		}

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var watching, publishing sync.WaitGroup
		var slowest, floor time.Duration
		most := 0
		bare := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		defer bare.Close()
		watching.Go(func() { // a new connection for each check, as a load balancer does
			health := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: long}
			for ctx.Err() == nil {
				for url, most := range map[string]*time.Duration{loaded.url + "/healthz": &slowest, bare.URL: &floor} {
					began := time.Now()
					response, err := health.Get(url)
					if !assert.NoError(t, err) {
						return
					}
					_ = response.Body.Close()
					assert.Equal(t, http.StatusOK, response.StatusCode)
					*most = max(*most, time.Since(began))
				}
				var n int
				if err := db.Pool().GetContext(ctx, &n, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ?", config.DBName); err == nil {
					most = max(most, n)
				}
				<-time.After(20 * time.Millisecond)
			}
		})
		publish := func(payload, key string) {
			for {
				status, answer := loaded.ask(t, http.MethodPost, "/topics/orders/messages", payload, "Idempotency-Key: "+key)
				if status == http.StatusCreated || status == http.StatusOK {
					return
				}
				if !assert.Equal(t, http.StatusServiceUnavailable, status, answer) {
					return
				}
				<-time.After(100 * time.Millisecond)
			}
		}
		for n := range posts {
			publishing.Go(func() { publish(strings.Repeat("x", 1000), fmt.Sprint("small", n)) })
		}
		for n := range large {
			publishing.Go(func() { publish(strings.Repeat("y", 16<<20-1000), fmt.Sprint("large", n)) })
		}
		publishing.Wait()
		got := map[uint64]bool{}
		r := loaded.events(t, "/topics/orders/events?after=beginning")
		for len(got) < posts+large {
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
		used := resident(t, program.Process.Pid)
		t.Logf("%d streams, %d posts, %d idle, %d of 16 MiB: %d MiB, %d connections, /healthz within %v, a server that does nothing else %v",
			streams, posts, idle, large, used, most, slowest, floor)
		if !racing { // the detector takes several times the memory
			assert.Less(t, used, 512)
		}
		assert.LessOrEqual(t, most, 50+10+4, "the pool, the readers' own, and the test's")
		assert.Less(t, slowest, max(time.Second, 10*floor), "on a machine that other tests use too")
		var n int
		require.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM orders"))
		assert.Equal(t, posts+large, n)
		hangUp() // the server would wait for its slow clients
		require.NoError(t, ended())
	})
}
