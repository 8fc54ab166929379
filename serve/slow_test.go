package serve

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// pipes is a network without buffers: a write waits until the other side reads.
type pipes struct {
	conns chan net.Conn
	ended chan struct{}
	pace  pace
}

// pace is how slowly a client reads, and how long a write to it may take. The connection measures both on a simulated clock, so
// that the test does not wait and a machine that pauses does not count as slow.
type pace struct{ perByte, most time.Duration }

// paced is a connection with a pace.
type paced struct {
	net.Conn
	pace
	mu        sync.Mutex
	now, late time.Duration // late is the deadline of the next writes, 0 for none
}

func (c *paced) SetWriteDeadline(at time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.late = 0
	if !at.IsZero() {
		c.late = c.now + c.most
	}
	return nil
}

func (c *paced) Write(p []byte) (int, error) {
	c.mu.Lock()
	c.now += time.Duration(len(p)) * c.perByte
	tooLate := c.late > 0 && c.now > c.late
	c.mu.Unlock()
	if tooLate {
		return 0, os.ErrDeadlineExceeded
	}
	return c.Conn.Write(p)
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.ended:
		return nil, net.ErrClosed
	}
}

func (p *pipes) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	if p.pace.most > 0 {
		server = &paced{Conn: server, pace: p.pace}
	}
	select {
	case p.conns <- server:
		return client, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (p *pipes) Close() error   { close(p.ended); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }

// slowly follows a topic's events over pipes. It reads only when the test reads.
func (s *site) slowly(tb testing.TB, path string, pace pace) *bufio.Reader {
	tb.Helper()
	network := &pipes{make(chan net.Conn), make(chan struct{}), pace}
	server := &http.Server{Handler: s.Handler(), ReadHeaderTimeout: long}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(network)
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: network.dial}}
	response, err := client.Get("http://localhost" + path)
	require.NoError(tb, err)
	tb.Cleanup(func() {
		_ = response.Body.Close()
		_ = server.Close()
		<-done
		client.CloseIdleConnections()
	})
	require.Equal(tb, http.StatusOK, response.StatusCode)
	return bufio.NewReaderSize(response.Body, 16)
}

// lines reads lines up to the first that begins with until, or to the end.
func lines(tb testing.TB, from *bufio.Reader, until string) (all []string) {
	tb.Helper()
	for {
		line, err := from.ReadString('\n')
		if err != nil {
			require.ErrorIs(tb, err, io.EOF)
			return all
		}
		if all = append(all, strings.TrimSuffix(line, "\n")); until != "" && strings.HasPrefix(line, until) {
			return all
		}
	}
}

// payloadsOf returns the messages in the lines of a stream, and the last cursor.
func payloadsOf(tb testing.TB, lines []string) (all []string, cursor string) {
	tb.Helper()
	for _, line := range lines {
		if id, ok := strings.CutPrefix(line, "id: "); ok {
			cursor = id
		}
		if data, ok := strings.CutPrefix(line, "data: "); ok {
			var m message
			require.NoError(tb, json.Unmarshal([]byte(data), &m), data)
			all = append(all, m.Payload)
		}
	}
	return all, cursor
}

// A client that does not read does not delay other clients. The server ends its stream.
func TestSlowClient(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		// The first server's WriteTimeout exceeds the test, so it keeps the slow client. The second server ends the client's
		// stream.
		patient := start(t, db, Options{Topics: []string{"orders"}, Buffer: 100, WriteTimeout: 2 * long})
		strict := start(t, openDB(t, config), Options{Topics: []string{"orders"}, Buffer: 20, WriteTimeout: 2 * time.Second})
		for _, site := range []*site{patient, strict} {
			conn, err := net.Dial("tcp", strings.TrimPrefix(site.url, "http://"))
			require.NoError(t, err)
			defer conn.Close()
			require.NoError(t, conn.(*net.TCPConn).SetReadBuffer(4096))
			_, err = fmt.Fprintf(conn, "GET /topics/orders/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			site.entered(t, "orders", 1)
		}
		fast := patient.events(t, "/topics/orders/events").joined()
		large := strings.Repeat("x", 200_000)
		for range 60 {
			insert(t, db, "orders", large)
			require.Equal(t, []string{large}, fast.payloads(1))
		}
		ended := func(site *site) float64 {
			return counted(t, site, `mqnotify_streams_ended_total{reason="behind",topic="orders"}`) +
				counted(t, site, `mqnotify_streams_ended_total{reason="slow",topic="orders"}`)
		}
		require.Eventually(t, func() bool { return ended(strict) == 1 }, long, 10*time.Millisecond)
		assert.Zero(t, ended(patient), "the patient server ended a stream")
	})
}

// A client that is further behind than the buffer gets errBehind, and loses nothing when it continues from its cursor.
func TestBehind(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 10})
		hub := site.topics["orders"].hub
		f := feed{hub: hub}
		cursor, err := f.join(t.Context(), nil, func([]item) error { return nil })
		require.NoError(t, err)
		insert(t, db, "orders", numbered(1, 30)...)
		require.Eventually(t, func() bool { at, err := hub.now(t.Context()); return err == nil && at.seq == f.seq+30 }, long, 10*time.Millisecond)
		_, _, err = f.next()
		require.ErrorIs(t, err, errBehind)
		assert.Equal(t, numbered(1, 30), site.events(t, "/topics/orders/events", "Last-Event-ID: "+cursor).payloads(30))
	})
}

// A client that is too far behind gets an event with the reason when its stream ends. It gets the rest when it connects again.
func TestLaggingClientIsInformed(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 10, ReconnectAfter: 1234 * time.Millisecond, WriteTimeout: long})
		slow := site.slowly(t, "/topics/orders/events", pace{})
		_, cursor := payloadsOf(t, lines(t, slow, "id: "))
		var want []string
		for _, n := range numbered(1, 30) {
			want = append(want, n+strings.Repeat(".", 10_000))
		}
		insert(t, db, "orders", want...)
		site.knows(t, "orders", 30)
		got := lines(t, slow, "")
		require.GreaterOrEqual(t, len(got), 4)
		end := got[len(got)-4:]
		assert.Equal(t, []string{"retry: 1234", "event: end"}, end[:2])
		assert.Contains(t, end[2], `"reason":"behind"`)
		first, last := payloadsOf(t, got[:len(got)-4])
		require.Less(t, len(first), 30)
		rest := site.events(t, "/topics/orders/events", "Last-Event-ID: "+cmp.Or(last, cursor)).payloads(30 - len(first))
		assert.Equal(t, want, append(first, rest...))
		assert.InDelta(t, 1, counted(t, site, `mqnotify_streams_ended_total{reason="behind",topic="orders"}`), 0)
	})
}

// A client that reads slowly gets all its messages, even if that takes longer than one write may take. The messages come from
// the buffer or from the table, and one of them is large.
func TestSlowClientCatchesUp(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		want := []string{strings.Repeat("a", 700_000)}
		for _, n := range numbered(1, 80) {
			want = append(want, n+strings.Repeat(".", 10_000))
		}
		insert(t, db, "orders", want...)
		for name, buffer := range map[string]int{"kept": 0, "table": 1} {
			t.Run(name, func(t *testing.T) {
				site := start(t, db, Options{Topics: []string{"orders"}, Buffer: buffer, WriteTimeout: long})
				const most = time.Second // the large message alone takes more than 2 s, a piece 0.2 s
				slow := site.slowly(t, "/topics/orders/events?after=beginning", pace{perByte: most / (300 << 10), most: most})
				var all []byte
				for buffer := make([]byte, piece); bytes.Count(all, []byte("\n\n")) < len(want); {
					n, err := slow.Read(buffer)
					require.NoError(t, err, "after %d bytes", len(all))
					all = append(all, buffer[:n]...)
				}
				got, _ := payloadsOf(t, strings.Split(string(all), "\n"))
				assert.Equal(t, want, got)
				assert.InDelta(t, map[string]float64{"kept": 0, "table": 1}[name], counted(t, site, `mqnotify_backfills_total{topic="orders"}`), 0)
			})
		}
	})
}

// Clients that do not read their old rows keep no other client from reading the table.
func TestSlowClientsLeaveTheTableFree(t *testing.T) {
	mysqltest.NotShort(t, "TestSlowClientsHoldBoundedMemory")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		var want []string
		for _, n := range numbered(1, 50) {
			want = append(want, n+strings.Repeat(".", 20_000)) // several portions together
		}
		insert(t, db, "orders", want...)
		site := start(t, db, Options{Topics: []string{"orders"}, Buffer: 1, WriteTimeout: 2 * long})
		var slow []*bufio.Reader
		for range reading / oneRead {
			slow = append(slow, site.slowly(t, "/topics/orders/events?after=beginning", pace{}))
		}
		site.client.Timeout = long
		assert.Equal(t, want, site.events(t, "/topics/orders/events?after=beginning").payloads(len(want)))
		status, answer := site.ask(t, http.MethodGet, "/topics/orders/messages?after=beginning&limit=1", "")
		assert.Equal(t, http.StatusOK, status, answer)
		assert.True(t, site.options.reading.TryAcquire(reading), "a client still holds a permit to read the table")
		site.options.reading.Release(reading)
		for _, r := range slow {
			var all []string
			for range want {
				payloads, _ := payloadsOf(t, lines(t, r, "data: "))
				all = append(all, payloads...)
			}
			assert.Equal(t, want, all, "the stream continues when the client reads")
		}
	})
}
