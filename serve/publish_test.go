package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/tracing"
)

// A request's body becomes a message, whatever bytes it has, with the headers in the request.
func TestPublish(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}})
		r := site.events(t, "/topics/orders/events").joined()
		status, answer := site.ask(t, "POST", "/topics/orders/messages", "hello é\x00", "Mqnotify-Header-Kind: paid", "Content-Type: text/plain")
		assert.Equal(t, http.StatusCreated, status)
		assert.JSONEq(t, `{"id":1}`, answer)
		_, data := r.next()
		var m message
		require.NoError(t, json.Unmarshal([]byte(data), &m))
		assert.Equal(t, message{1, "hello é\x00", map[string]string{"kind": "paid"}, "orders"}, m)
		status, _ = site.ask(t, "POST", "/topics/orders/messages", "")
		assert.Equal(t, http.StatusCreated, status)
		assert.Equal(t, []string{""}, r.payloads(1))
		status, _ = site.ask(t, "POST", "/topics/orders/messages", "\xff\xfe")
		assert.Equal(t, http.StatusCreated, status)
		_, data = r.next()
		assert.Contains(t, data, `"payload_base64":"//4="`)
	})
}

// A header that a message can't have is refused with the reason, and with a status that does not ask the client to try again.
func TestHeadersThatAreRefused(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}})
		for header, want := range map[string]string{
			"Mqnotify-Header-Mqnotify-Retry: other/1": "names that begin with mqnotify- are reserved",
			"mqnotify-header-MQNOTIFY-X: 1":           "names that begin with mqnotify- are reserved",
			"Mqnotify-Header-Kind: \xff":              "not UTF-8",
			"Idempotency-Key: \xff":                   "UTF-8",
			"traceparent: 00-\xff":                    "",
		} {
			status, answer := site.ask(t, "POST", "/topics/orders/messages", "x", header)
			if want == "" {
				assert.Equal(t, http.StatusCreated, status, answer)
				continue
			}
			assert.Equal(t, http.StatusBadRequest, status, header)
			assert.Contains(t, answer, want)
		}
	})
}

// The server deletes no key before its age is over, even if the clocks have gone forward meanwhile.
func TestIdempotencyKeyAge(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.ClocksForward(t, s.Database(t)), "orders")
		p := start(t, db, Options{Topics: []string{"orders"}, KeyAge: 24 * time.Hour})
		for _, age := range []string{"23.5", "24.5"} {
			status, _ := p.ask(t, "POST", "/topics/orders/messages", "once", "Idempotency-Key: "+age)
			assert.Equal(t, http.StatusCreated, status)
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_idempotency SET created_at = FROM_UNIXTIME(UNIX_TIMESTAMP() - 3600 * ?) WHERE name = ?", age, age)
		}
		require.NoError(t, p.forget(t.Context()))
		assert.Equal(t, []string{"23.5"}, mysqltest.Values[string](t, db.Pool(), "SELECT name FROM mqnotify_idempotency"))
	})
}

// What stays refused has a status that does not ask the client to try again.
func TestRefusedPublishes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE orders MODIFY payload VARBINARY(10) NOT NULL, ADD UNIQUE KEY (payload)")
		account := s.User(t, config, "SELECT ON "+config.DBName+".*", "INSERT ON "+config.DBName+".orders")
		limited, err := notify.OpenConfig(account)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, limited.Close()) })
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER own BEFORE INSERT ON orders FOR EACH ROW "+
			"IF NEW.payload = 'null' THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1048; END IF")
		all, least := start(t, db, Options{Topics: []string{"orders"}}), start(t, limited, Options{Topics: []string{"orders"}})
		insert(t, db, "orders", "there")
		makeDeadLetter(t, db)
		for _, test := range []struct {
			site    *site
			body    string
			headers []string
			status  int
		}{
			{least, "x", []string{"Idempotency-Key: k"}, http.StatusForbidden},
			{all, "longer than ten", nil, http.StatusConflict},
			{all, "there", nil, http.StatusConflict},
			{all, "null", nil, http.StatusConflict},
			{all, "there", []string{"Idempotency-Key: k"}, http.StatusConflict},
			{all, "new", []string{"Idempotency-Key: k"}, http.StatusCreated},
			{all, "new", []string{"Idempotency-Key: k"}, http.StatusOK},
		} {
			status, answer, header := test.site.askAll(t, "POST", "/topics/orders/messages", test.body, test.headers...)
			assert.Equal(t, test.status, status, "%s: %s", test.body, answer)
			assert.Empty(t, header.Get("Retry-After"))
		}
		mysqltest.ExecAll(t, db.Pool(), "DROP TRIGGER own", "CREATE TRIGGER own BEFORE INSERT ON orders FOR EACH ROW SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 1449")
		status, answer, header := all.askAll(t, "POST", "/topics/orders/messages", "x")
		assert.Equal(t, http.StatusInternalServerError, status, answer)
		assert.Empty(t, header.Get("Retry-After"))
		status, answer, header = least.askAll(t, "DELETE", "/topics/orders/dead-letters/1", "")
		assert.Equal(t, http.StatusForbidden, status, answer)
		assert.Empty(t, header.Get("Retry-After"))
		mysqltest.Exec(t, db.Pool(), "DROP TABLE mqnotify_dead_letter")
		status, answer, header = all.askAll(t, "GET", "/topics/orders/dead-letters", "")
		assert.Equal(t, http.StatusConflict, status, answer)
		assert.Empty(t, header.Get("Retry-After"))
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE mqnotify_dead_letter (id INT)")
		status, answer, header = all.askAll(t, "GET", "/topics/orders/dead-letters", "")
		assert.Equal(t, http.StatusInternalServerError, status, answer)
		assert.Empty(t, header.Get("Retry-After"))
	})
}

// A client of a database that takes no writes for a while is asked to try again, with a key or without.
func TestPublishToReadOnlyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		openDB(t, config, "orders")
		db, err := notify.OpenConfig(own.User(t, config, "ALL ON "+config.DBName+".*"))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		site, admin := start(t, db, Options{Topics: []string{"orders"}}), own.Admin(t)
		for _, readOnly := range []string{"ON", "OFF"} {
			mysqltest.Exec(t, admin, "SET GLOBAL read_only = "+readOnly)
			for _, key := range []string{"", "Idempotency-Key: k"} {
				status, answer, header := site.askAll(t, "POST", "/topics/orders/messages", "x", key)
				if readOnly == "ON" {
					assert.Equal(t, http.StatusServiceUnavailable, status, answer)
					assert.Equal(t, "2", header.Get("Retry-After"))
					assert.Contains(t, answer, "takes no writes")
				} else {
					assert.Equal(t, http.StatusCreated, status, answer)
				}
			}
		}
	})
}

// Concurrent requests with the same idempotency key publish once, even to different servers.
func TestIdempotencyKey(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders", "invoices")
		options := Options{Topics: []string{"orders", "invoices"}, KeyAge: time.Hour}
		sites := []*site{start(t, db, options), start(t, db, options)}
		const tries = 16
		answers, created := make([]string, tries), make([]bool, tries)
		var trying sync.WaitGroup
		for i := range tries {
			trying.Go(func() {
				status, answer, header := sites[i%2].askAll(t, "POST", "/topics/orders/messages", "once", "Idempotency-Key: k1")
				answers[i], created[i] = answer, status == http.StatusCreated
				assert.Equal(t, !created[i], header.Get("Idempotency-Replayed") == "true")
				assert.Contains(t, []int{200, 201}, status, answer)
			})
		}
		trying.Wait()
		made := 0
		for i := range tries {
			assert.Equal(t, answers[0], answers[i])
			if created[i] {
				made++
			}
		}
		assert.Equal(t, 1, made)
		count := func(topic string) (n int) {
			require.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM "+topic))
			return n
		}
		assert.Equal(t, 1, count("orders"))
		status, answer := sites[0].ask(t, "POST", "/topics/orders/messages", "another", "Idempotency-Key: k1")
		assert.Equal(t, http.StatusUnprocessableEntity, status, answer)
		status, _ = sites[0].ask(t, "POST", "/topics/invoices/messages", "another", "Idempotency-Key: k1") // each topic has its own keys
		assert.Equal(t, http.StatusCreated, status)
		status, _ = sites[0].ask(t, "POST", "/topics/orders/messages", "once", "Idempotency-Key: K1")
		assert.Equal(t, http.StatusCreated, status)

		// The server deletes an old key.
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_idempotency SET created_at = NOW() - INTERVAL 2 HOUR WHERE name = 'k1' AND topic = 'orders'")
		require.NoError(t, sites[0].forget(t.Context()))
		status, _ = sites[0].ask(t, "POST", "/topics/orders/messages", "once", "Idempotency-Key: k1")
		assert.Equal(t, http.StatusCreated, status)
		assert.Equal(t, 3, count("orders"))

		mysqltest.Exec(t, db.Pool(), "DROP TABLE mqnotify_idempotency")
		status, answer = sites[0].ask(t, "POST", "/topics/orders/messages", "x", "Idempotency-Key: k2")
		assert.Equal(t, http.StatusConflict, status)
		assert.Contains(t, answer, "mqnotify init")
		assert.Equal(t, 3, count("orders"), "the message was rolled back")
	})
}

// lossyConn closes the connection at its next COMMIT, either after the server's answer or before the server gets it.
type lossyConn struct {
	*net.TCPConn
	lose *atomic.Pointer[string]
}

func (c *lossyConn) Write(p []byte) (int, error) {
	if !bytes.HasSuffix(p, []byte("COMMIT")) {
		return c.TCPConn.Write(p)
	}
	when := c.lose.Swap(nil)
	if when == nil {
		return c.TCPConn.Write(p)
	}
	defer c.Close()
	if *when == "answered" {
		if _, err := c.TCPConn.Write(p); err != nil {
			return 0, err
		}
		if _, err := c.TCPConn.Read(make([]byte, 1)); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// With a key, a message is stored once even if the answer to the COMMIT is lost, whether or not the server committed.
func TestPublishWithoutAnAnswer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		var lose atomic.Pointer[string]
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			return &lossyConn{conn.(*net.TCPConn), &lose}, nil
		}
		db := openDB(t, config, "orders")
		site := start(t, db, Options{Topics: []string{"orders"}})
		for _, test := range []struct {
			when   string
			status int
		}{{"answered", http.StatusOK}, {"unheard", http.StatusCreated}} {
			lose.Store(&test.when)
			status, answer, header := site.askAll(t, "POST", "/topics/orders/messages", test.when, "Idempotency-Key: "+test.when)
			require.Nil(t, lose.Load(), "the connection was not closed")
			assert.Equal(t, test.status, status, answer)
			assert.Equal(t, test.status == http.StatusOK, header.Get("Idempotency-Replayed") == "true")
			var ids []uint64
			require.NoError(t, db.Pool().SelectContext(t.Context(), &ids, "SELECT id FROM orders WHERE payload = ?", test.when))
			require.Len(t, ids, 1)
			assert.JSONEq(t, fmt.Sprintf(`{"id":%d}`, ids[0]), answer)
		}
	})
}

// A trace continues from the request that publishes, through the message, to the handler's span.
func TestTrace(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		spans := tracetest.NewSpanRecorder()
		provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
		site := start(t, db, Options{Topics: []string{"orders"}, Tracer: provider})
		const id = "4bf92f3577b34da6a3ce929d0e0e4736"
		status, _ := site.ask(t, "POST", "/topics/orders/messages", "traced", "traceparent: 00-"+id+"-00f067aa0ba902b7-01", "tracestate: a=b")
		require.Equal(t, http.StatusCreated, status)
		c, err := consumer.New(db, "orders", consumer.Options{From: "beginning", Logger: quiet})
		require.NoError(t, err)
		var seen consumer.Message
		require.NoError(t, c.Run(t.Context(), tracing.Each(provider, func(_ context.Context, m consumer.Message) error {
			seen = m
			return consumer.ErrStop
		})))
		ended := spans.Ended()
		require.Len(t, ended, 2)
		publish, process := ended[0], ended[1]
		assert.Equal(t, "publish orders", publish.Name())
		assert.Equal(t, id, publish.SpanContext().TraceID().String())
		assert.Equal(t, "00f067aa0ba902b7", publish.Parent().SpanID().String())
		assert.Equal(t, "process orders", process.Name())
		assert.Equal(t, id, process.SpanContext().TraceID().String())
		assert.Equal(t, publish.SpanContext().SpanID(), process.Parent().SpanID())
		assert.Equal(t, "a=b", seen.Headers["tracestate"])
	})
}

// A dead letter can be retried, which moves it back into its topic, or deleted.
func TestDeadLetters(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.Params = map[string]string{"time_zone": "'+05:00'"}
		db := openDB(t, config, "orders")
		site := start(t, db, Options{Topics: []string{"orders"}})
		mysqltest.Exec(t, db.Pool(), `INSERT INTO orders (payload, headers) VALUES ('poison', '{"kind": "paid", "n": 5}')`)
		makeDeadLetter(t, db)
		insert(t, db, "orders", "more")
		makeDeadLetter(t, db)
		site.knows(t, "orders", 2)
		r := site.events(t, "/topics/orders/events").joined()
		letters := func() (all []deadLetter) {
			_, answer := site.ask(t, "GET", "/topics/orders/dead-letters?group=mailer", "")
			var got struct {
				All []deadLetter `json:"dead_letters"`
			}
			require.NoError(t, json.Unmarshal([]byte(answer), &got), answer)
			return got.All
		}
		all := letters()
		require.Len(t, all, 2)
		assert.Equal(t, []string{"more", "poison"}, []string{string(all[0].Payload), string(all[1].Payload)})
		assert.Contains(t, all[1].Error, "no such address")
		failed, err := time.Parse(time.RFC3339, all[1].FailedAt)
		require.NoError(t, err)
		assert.Equal(t, mysqltest.Value[int64](t, db.Pool(), "SELECT FLOOR(UNIX_TIMESTAMP(MIN(failed_at))) FROM mqnotify_dead_letter"), failed.Unix())
		status, answer := site.ask(t, "POST", fmt.Sprintf("/topics/orders/dead-letters/%d/retry", all[1].ID), "")
		require.Equal(t, http.StatusOK, status, answer)
		_, data := r.next()
		var m message
		require.NoError(t, json.Unmarshal([]byte(data), &m))
		assert.Equal(t, "poison", m.Payload)
		assert.Equal(t, map[string]string{"kind": "paid", "n": "5", "mqnotify-retry": "mailer/1"}, m.Headers)
		status, _ = site.ask(t, "POST", fmt.Sprintf("/topics/orders/dead-letters/%d/retry", all[1].ID), "")
		assert.Equal(t, http.StatusNotFound, status, "a letter is retried only once")
		status, _ = site.ask(t, "DELETE", fmt.Sprintf("/topics/orders/dead-letters/%d", all[0].ID), "")
		assert.Equal(t, http.StatusOK, status)
		assert.Empty(t, letters())
	})
}

// The state of a topic and the metrics agree with what happened.
func TestStateAndMetrics(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		commands := metrics.CountCommands(config)
		db := openDB(t, config, "orders")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: quiet}, "orders"))
		insert(t, db, "orders", "a")
		makeDeadLetter(t, db)
		site := start(t, db, Options{Topics: []string{"orders"}, Commands: commands})
		r := site.events(t, "/topics/orders/events").joined()
		require.Eventually(t, func() bool { _, known := site.metrics.readers.Clock.Ahead(); return known }, long, 10*time.Millisecond)
		site.ask(t, "POST", "/topics/orders/messages", "b")
		r.payloads(1)
		var state topicJSON
		require.Eventually(t, func() bool {
			_, answer := site.ask(t, "GET", "/topics/orders", "")
			state = topicJSON{}
			require.NoError(t, json.Unmarshal([]byte(answer), &state), answer)
			return state.Head != nil && *state.Head == 2 && state.Gate.Leader != 0
		}, long, 50*time.Millisecond)
		assert.True(t, state.Gate.Trigger)
		assert.Equal(t, 1, state.Clients)
		assert.True(t, state.Reading)
		require.Len(t, state.Groups, 1)
		assert.Equal(t, "mailer", state.Groups[0].Group)
		assert.Equal(t, "1", state.Groups[0].Lag)
		assert.Equal(t, "1", state.Groups[0].DeadLetters)
		for name, want := range map[string]float64{
			`mqnotify_clients{topic="orders"}`: 1, `mqnotify_head{topic="orders"}`: 2, `mqnotify_group_lag{group="mailer",topic="orders"}`: 1,
			`mqnotify_group_dead_letters{group="mailer",topic="orders"}`: 1, `mqnotify_group_active{group="mailer",topic="orders"}`: 0,
			`mqnotify_messages_read_total{topic="orders"}`: 2, `mqnotify_messages_published_total{topic="orders"}`: 1,
			`mqnotify_messages_sent_total{kind="stream",topic="orders"}`: 1, `mqnotify_latency_seconds_count{topic="orders"}`: 1,
			`mqnotify_gate_led{topic="orders"}`: 1, `mqnotify_wake_trigger{topic="orders"}`: 1, `mqnotify_reader_lost_total{topic="orders"}`: 0,
		} {
			require.Eventually(t, func() bool { // a scrape leaves out what the database does not answer within 2 s
				return counted(t, site, name) == want
			}, long, 50*time.Millisecond, name)
		}
		assert.Positive(t, counted(t, site, "mqnotify_statements_total"))
		assert.Less(t, counted(t, site, `mqnotify_latency_seconds_sum{topic="orders"}`), long.Seconds())
		_, text := site.ask(t, "GET", "/metrics", "")
		assert.Contains(t, text, "go_goroutines")
	})
}
