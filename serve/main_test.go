package serve

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/notify"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.FlagTable, schema.OffsetTable, schema.PartitionTable, schema.DeadLetterTable, schema.RetryTable, schema.OriginTable, schema.IdempotencyTable}

func TestMain(m *testing.M) {
	for env, run := range map[string]func(value string) error{loadEnv: serveForLoad, probeEnv: probe} {
		if value := os.Getenv(env); value != "" {
			if err := run(value); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
			return
		}
	}
	mysqltest.Main(m)
}

// long limits every wait of a test.
const long = time.Minute

var quiet = slog.New(slog.DiscardHandler)

func openDB(tb testing.TB, config *mysql.Config, topics ...string) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	schematest.Init(tb, db.Pool(), stateTables, topics...)
	return db
}

func insert(tb testing.TB, db *notify.DB, topic string, payloads ...string) {
	tb.Helper()
	for _, payload := range payloads {
		mysqltest.Exec(tb, db.Pool(), "INSERT INTO "+ident.Quote(topic)+" (payload) VALUES (?)", payload)
	}
}

// site is a server that runs during the test.
type site struct {
	*Server
	url    string
	client *http.Client
	stop   context.CancelFunc
	done   chan struct{}
	err    error
}

func start(tb testing.TB, db *notify.DB, options Options) *site {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	return startOn(tb, db, options, listener)
}

func startOn(tb testing.TB, db *notify.DB, options Options, listener net.Listener) *site {
	tb.Helper()
	return run(tb, db, options, listener, "http://", &http.Client{Transport: &http.Transport{}}, nil)
}

// startTLS starts a server with HTTPS. Go's client uses HTTP/2 with it.
func startTLS(tb testing.TB, db *notify.DB, options Options) *site {
	tb.Helper()
	helper := httptest.NewUnstartedServer(nil) // for its certificate
	helper.EnableHTTP2 = true
	helper.StartTLS()
	tb.Cleanup(helper.Close)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(tb, err)
	return run(tb, db, options, listener, "https://", helper.Client(), &tls.Config{Certificates: helper.TLS.Certificates, MinVersion: tls.VersionTLS12})
}

func run(tb testing.TB, db *notify.DB, options Options, listener net.Listener, scheme string, client *http.Client, secure *tls.Config) *site {
	tb.Helper()
	if options.Logger == nil {
		options.Logger = quiet
	}
	s, err := New(db, options)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	running := &site{Server: s, url: scheme + listener.Addr().String(), client: client, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(running.done)
		running.err = s.Serve(ctx, listener, secure)
	}()
	tb.Cleanup(func() {
		running.client.CloseIdleConnections()
		running.end(tb)
	})
	require.Eventually(tb, func() bool {
		r, err := running.client.Get(running.url + "/readyz")
		if err != nil {
			return false
		}
		defer r.Body.Close()
		return r.StatusCode == http.StatusOK
	}, long, 5*time.Millisecond)
	return running
}

// entered waits until a topic has the given number of clients.
func (s *site) entered(tb testing.TB, topic string, want int) {
	tb.Helper()
	require.Eventually(tb, func() bool { clients, _, _ := s.topics[topic].hub.state(); return clients == want }, long, 10*time.Millisecond)
}

// end stops the server as the first Ctrl-C does.
func (s *site) end(tb testing.TB) {
	tb.Helper()
	s.stop()
	select {
	case <-s.done:
		require.NoError(tb, s.err)
	case <-time.After(long):
		tb.Fatal("Serve does not return")
	}
}

// knows waits until the server has read the row with an id.
func (s *site) knows(tb testing.TB, topic string, id uint64) {
	tb.Helper()
	require.Eventually(tb, func() bool {
		at, err := s.topics[topic].hub.now(tb.Context())
		return err == nil && at.progress.Has(id)
	}, long, 10*time.Millisecond)
}

// ask makes a request. Each header is "Name: value".
func (s *site) ask(tb testing.TB, method, path, body string, headers ...string) (status int, answer string) {
	tb.Helper()
	status, answer, _ = s.askAll(tb, method, path, body, headers...)
	return status, answer
}

func (s *site) askAll(tb testing.TB, method, path, body string, headers ...string) (status int, answer string, header http.Header) {
	tb.Helper()
	request, err := http.NewRequestWithContext(tb.Context(), method, s.url+path, strings.NewReader(body))
	require.NoError(tb, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		switch name {
		case "":
			continue
		case "Host":
			request.Host = value
			continue
		}
		request.Header.Set(name, value)
	}
	response, err := s.client.Do(request)
	require.NoError(tb, err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	require.NoError(tb, err)
	return response.StatusCode, string(all), response.Header
}

// polls makes a request in the background.
func (s *site) polls(tb testing.TB, path string) (answer <-chan string) {
	tb.Helper()
	answers := make(chan string, 1)
	go func() {
		defer close(answers)
		response, err := s.client.Get(s.url + path)
		if !assert.NoError(tb, err) {
			return
		}
		defer response.Body.Close()
		all, err := io.ReadAll(response.Body)
		assert.NoError(tb, err)
		answers <- string(all)
	}()
	return answers
}

// message has the fields of an event's data that tests check.
type message struct {
	ID      uint64            `json:"id"`
	Payload string            `json:"payload"`
	Headers map[string]string `json:"headers"`
	Topic   string            `json:"topic"`
}

// stream is a client that follows a topic's events.
type stream struct {
	tb     testing.TB
	lines  chan string
	cancel context.CancelFunc
	cursor string // the newest id that arrived
	retry  string
}

// events follows a topic's events. Each header is "Name: value".
func (s *site) events(tb testing.TB, path string, headers ...string) *stream {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+path, nil)
	require.NoError(tb, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	response, err := s.client.Do(request) //nolint:bodyclose // the goroutine below closes it
	require.NoError(tb, err)
	if response.StatusCode != http.StatusOK {
		body, _ := io.ReadAll(response.Body)
		tb.Fatalf("%s: %s", response.Status, body)
	}
	require.Equal(tb, "text/event-stream", response.Header.Get("Content-Type"))
	r := &stream{tb: tb, lines: make(chan string, 100_000), cancel: cancel}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer close(r.lines)
		defer response.Body.Close()
		lines := bufio.NewScanner(response.Body)
		lines.Buffer(nil, 1<<24)
		for lines.Scan() {
			r.lines <- lines.Text()
		}
	}()
	tb.Cleanup(func() {
		cancel()
		<-done
	})
	return r
}

// line returns the next line, and false at the end.
func (r *stream) line() (string, bool) {
	select {
	case line, ok := <-r.lines:
		return line, ok
	case <-time.After(long):
		r.tb.Fatalf("the stream sends nothing")
		return "", false
	}
}

// next returns the next event that has data. Its kind is "" for a message, and "eof" at the end of the stream.
func (r *stream) next() (kind, data string) {
	var id string
	for {
		line, ok := r.line()
		if !ok {
			return "eof", ""
		}
		name, value, _ := strings.Cut(line, ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "retry":
			r.retry = value
		case "data":
			data = value
		case "":
			r.cursor = cmp.Or(id, r.cursor) // only now, because a client discards an event that is cut off
			if data != "" {
				return kind, data
			}
			kind = ""
		}
	}
}

// joined waits until the client has its first cursor.
func (r *stream) joined() *stream {
	for r.cursor == "" {
		line, ok := r.line()
		require.True(r.tb, ok, "the stream ended")
		if value, is := strings.CutPrefix(line, "id: "); is {
			r.cursor = value
		}
	}
	return r
}

// payloads returns the payloads of the next n messages.
func (r *stream) payloads(n int) (all []string) {
	r.tb.Helper()
	for range n {
		kind, data := r.next()
		require.Empty(r.tb, kind, "after %v: %s", all, data)
		var m message
		require.NoError(r.tb, json.Unmarshal([]byte(data), &m), data)
		all = append(all, m.Payload)
	}
	return all
}

// numbered returns the numbers of the range as payloads.
func numbered(from, to int) (all []string) {
	for i := from; i <= to; i++ {
		all = append(all, fmt.Sprint(i))
	}
	return all
}
