package serve

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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

// The server refuses requests beyond MaxConnections, over HTTP/1 and HTTP/2, and accepts one when another ends. It answers
// health checks meanwhile.
func TestMaxConnections(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		for name, begin := range map[string]func(testing.TB, *notify.DB, Options) *site{"HTTP/1": start, "HTTP/2": startTLS} {
			t.Run(name, func(t *testing.T) {
				site := begin(t, db, Options{Topics: []string{"orders"}, MaxConnections: 2, crowded: time.Nanosecond}) // a free place needs no wait
				first := site.events(t, "/topics/orders/events").joined()
				site.events(t, "/topics/orders/events").joined()
				for range 20 {
					status, answer, header := site.askAll(t, http.MethodGet, "/topics/orders/events", "")
					require.Equal(t, http.StatusServiceUnavailable, status, answer)
					require.Equal(t, "2", header.Get("Retry-After"))
				}
				status, _ := site.ask(t, http.MethodGet, "/healthz", "")
				require.Equal(t, http.StatusOK, status)
				first.cancel()
				mysqltest.Eventually(t, "a request is accepted again", func() bool {
					status, _ := site.ask(t, http.MethodGet, "/topics/orders", "")
					return status == http.StatusOK
				})
			})
		}
	})
}

// A client with one address can't use all connections. Clients on this machine can.
func TestMaxPerClient(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, MaxConnections: 10, MaxPerClient: 2})
		ask := func(address, path string) *httptest.ResponseRecorder {
			request := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost"+path, http.NoBody)
			request.RemoteAddr = net.JoinHostPort(address, "1234")
			w := httptest.NewRecorder()
			site.Handler().ServeHTTP(w, request)
			return w
		}
		for _, client := range []struct {
			address string
			most    int // 0 for any number
		}{{"192.0.2.1", 2}, {"2001:db8::1", 2}, {"127.0.0.1", 0}, {"::1", 0}} {
			var waiting sync.WaitGroup
			polls := cmp.Or(client.most, 5)
			for range polls {
				waiting.Go(func() { ask(client.address, "/topics/orders/messages?wait=5m") })
			}
			site.entered(t, "orders", polls)
			answer := ask(client.address, "/topics/orders")
			if client.most > 0 {
				assert.Equal(t, http.StatusTooManyRequests, answer.Code, client.address)
				assert.Equal(t, "2", answer.Header().Get("Retry-After"))
			} else {
				assert.Equal(t, http.StatusOK, answer.Code, client.address)
			}
			assert.Equal(t, http.StatusOK, ask(client.address, "/healthz").Code)
			assert.Equal(t, http.StatusOK, ask("192.0.2.2", "/topics/orders").Code)
			insert(t, db, "orders", "ends the polls")
			waiting.Wait()
			assert.Equal(t, http.StatusOK, ask(client.address, "/topics/orders").Code, client.address)
		}
		assert.InDelta(t, 2, counted(t, site, "mqnotify_busy_total"), 0)
	})
}

// Sockets that send nothing do not keep clients out, however many they are, and the server soon closes them.
func TestIdleSockets(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, MaxConnections: 2, header: 5 * time.Second})
		site.client.Timeout = long
		stream := site.events(t, "/topics/orders/events").joined()
		var last net.Conn
		for range 200 {
			idle, err := net.Dial("tcp", strings.TrimPrefix(site.url, "http://"))
			require.NoError(t, err)
			defer idle.Close()
			last = idle
		}
		fresh := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: long}
		for _, path := range []string{"/healthz", "/topics/orders"} {
			response, err := fresh.Get(site.url + path)
			require.NoError(t, err)
			require.NoError(t, response.Body.Close())
			require.Equal(t, http.StatusOK, response.StatusCode)
		}
		insert(t, db, "orders", "1")
		require.Equal(t, []string{"1"}, stream.payloads(1))
		require.NoError(t, last.SetReadDeadline(time.Now().Add(long)))
		_, err := last.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF)
	})
}

// A connection that is reported as idle after its end is not listed as idle, because nothing would remove it from the list.
func TestIdleAfterTheEnd(t *testing.T) {
	mysqltest.Once(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	l := newLimitListener(listener, 1, long)
	client, conn := net.Pipe()
	defer client.Close()
	c := l.admit(conn)
	require.Equal(t, 1, l.idle.Len())
	require.NoError(t, c.Close())
	connState(c, http.StateIdle)
	require.Zero(t, l.idle.Len())
	require.NoError(t, l.Close())
}

// The server disconnects a client that does not finish its header, and serves other clients meanwhile.
func TestHeaderTime(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, header: 5 * time.Second})
		stream := site.events(t, "/topics/orders/events").joined()
		half, err := net.Dial("tcp", strings.TrimPrefix(site.url, "http://"))
		require.NoError(t, err)
		defer half.Close()
		_, err = half.Write([]byte("GET /topics/orders/events HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
		require.NoError(t, err)
		ended := make(chan error, 1)
		go func() {
			_, err := io.Copy(io.Discard, half) // nil if the server closes the connection
			ended <- err
		}()
		late := time.After(long)
		for n := 1; ; n++ { // other clients go on meanwhile
			insert(t, db, "orders", strconv.Itoa(n))
			require.Equal(t, []string{strconv.Itoa(n)}, stream.payloads(1))
			select {
			case err := <-ended:
				require.NoError(t, err)
				insert(t, db, "orders", "after")
				require.Equal(t, []string{"after"}, stream.payloads(1))
				status, _ := site.ask(t, http.MethodGet, "/healthz", "")
				require.Equal(t, http.StatusOK, status)
				return
			case <-late:
				t.Fatal("the server does not close the connection")
			default:
			}
		}
	})
}

// A request whose body does not end gets an error in time, and its connection is closed, with a token or without.
func TestBodyTime(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, Tokens: pageTokens, body: 500 * time.Millisecond})
		for token, want := range map[string]int{"": http.StatusUnauthorized, pageToken: http.StatusBadRequest} {
			for _, body := range []string{"Content-Length: 1000\r\n\r\nhalf", "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n"} {
				conn, err := net.Dial("tcp", strings.TrimPrefix(site.url, "http://"))
				require.NoError(t, err)
				defer conn.Close()
				_, err = fmt.Fprintf(conn, "POST /topics/orders/messages HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\n%s", token, body)
				require.NoError(t, err)
				require.NoError(t, conn.SetReadDeadline(time.Now().Add(long)))
				lines := bufio.NewReader(conn)
				answer, err := http.ReadResponse(lines, nil)
				require.NoError(t, err, "%s", body)
				assert.Equal(t, want, answer.StatusCode)
				_, err = io.Copy(io.Discard, answer.Body)
				require.NoError(t, err)
				require.NoError(t, answer.Body.Close())
				_, err = lines.ReadByte()
				require.ErrorIs(t, err, io.EOF, "the connection stays open")
			}
		}
	})
}

// A client that connects before the server has read the topic waits, because a browser would not reconnect after a refusal. A
// stream gets heartbeats meanwhile, and a poll ends in time.
func TestClientBeforeTheFirstRead(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", "1")
		server, err := New(db, Options{Topics: []string{"orders"}, Logger: quiet, Heartbeat: 10 * time.Millisecond, patience: 50 * time.Millisecond})
		require.NoError(t, err)
		listens := httptest.NewServer(server.Handler())
		t.Cleanup(listens.Close)
		site := &site{Server: server, url: listens.URL, client: listens.Client()}
		live, all := site.events(t, "/topics/orders/events"), site.events(t, "/topics/orders/events?after=beginning")
		line, _ := live.line()
		assert.Equal(t, ":", line)
		status, answer := site.ask(t, http.MethodGet, "/topics/orders/messages", "")
		assert.Equal(t, http.StatusServiceUnavailable, status, answer)
		status, _ = site.ask(t, http.MethodGet, "/readyz", "")
		assert.Equal(t, http.StatusServiceUnavailable, status)
		polled := site.polls(t, "/topics/orders/messages?after=beginning&wait=1m")
		site.entered(t, "orders", 3)

		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ran := make(chan error, 1)
		defer cancel()
		go func() { ran <- server.Run(ctx) }()
		assert.Contains(t, <-polled, `"payload":"1"`)
		live.joined()
		insert(t, db, "orders", "2")
		assert.Equal(t, []string{"2"}, live.payloads(1))
		assert.Equal(t, []string{"1", "2"}, all.payloads(2))
		cancel()
		require.NoError(t, <-ran)
	})
}

// A client that connects while the first connection to the database fails waits too, and gets later messages on the same stream.
func TestClientBeforeTheDatabase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, proxy := s.Database(t), s.Proxy(t)
		direct := openDB(t, config, "orders")
		proxy.Down()
		db, err := notify.OpenConfig(proxy.Config(config))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		server, err := New(db, Options{Topics: []string{"orders"}, Logger: quiet, Heartbeat: 10 * time.Millisecond})
		require.NoError(t, err)
		listens := httptest.NewServer(server.Handler())
		t.Cleanup(listens.Close)
		ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
		ran := mysqltest.Result(func() error { return server.Run(ctx) })
		defer func() {
			cancel()
			require.NoError(t, <-ran)
		}()
		h := server.topics["orders"].hub
		mysqltest.Eventually(t, "the reader has failed", func() bool {
			h.mu.Lock()
			defer h.mu.Unlock()
			return h.lost || h.err != nil
		})
		site := &site{Server: server, url: listens.URL, client: listens.Client()}
		r := site.events(t, "/topics/orders/events")
		proxy.Up()
		r.joined()
		insert(t, direct, "orders", "1")
		assert.Equal(t, []string{"1"}, r.payloads(1))
	})
}

// occupy acquires the whole semaphore for reading tables until leave is called.
func (s *site) occupy() (leave func()) {
	turns := s.options.reading
	_ = turns.Acquire(context.Background(), turns.size)
	return func() { turns.Release(turns.size) }
}

// A stream that waits for a permit to read the table gets heartbeats meanwhile.
func TestHeartbeatBeforeThePermit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", numbered(1, 10)...)
		site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 1, Heartbeat: 10 * time.Millisecond})
		leave := site.occupy()
		site.client.Timeout = long
		r := site.events(t, "/topics/orders/events?after=beginning")
		for range 3 {
			line, _ := r.line()
			assert.Equal(t, ":", line)
			line, _ = r.line()
			assert.Empty(t, line)
		}
		leave()
		assert.Equal(t, numbered(1, 10), r.payloads(10))
	})
}

// A poll that waits for the table gets an error at the end of its time, and when the server ends.
func TestPollThatWaitsForTheTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", numbered(1, 10)...)
		site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 1, patience: 100 * time.Millisecond})
		site.occupy()
		site.client.Timeout = long
		status, answer := site.ask(t, http.MethodGet, "/topics/orders/messages?after=beginning&wait=1ms", "")
		assert.Equal(t, http.StatusServiceUnavailable, status, answer)
		polled := site.polls(t, "/topics/orders/messages?after=beginning&wait=5m")
		site.entered(t, "orders", 1)
		site.end(t)
		assert.Contains(t, <-polled, "can't be read now")
	})
}
