package bridge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

func TestWebhook(t *testing.T) {
	mysqltest.Once(t)
	r := newReceiver(t)
	conform(t, target{
		url:     r.url,
		refused: r.url("credentials") + "&key=" + wrongPassword,
		read:    func(_ *testing.T, topic string) []stored { return r.stored(topic) },
		stop:    func() { r.server.CloseClientConnections(); r.server.Close() },
		restart: func() { r.listen(t, r.addr) },
		large:   1<<20 + 1, atSend: true, freeze: r.freeze,
	})
}

// Each kind of answer stops the bridge, refuses the message, asks for another try, or confirms it.
func TestWebhookAnswers(t *testing.T) {
	mysqltest.Once(t)
	r := newReceiver(t)
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it followed to another host") }))
	defer other.Close()
	for _, test := range []struct {
		status             int
		header, value      string
		poison, stop, wait bool
		after              time.Duration
		ok                 bool
	}{
		{status: 200, ok: true}, {status: 202, ok: true},
		{status: 400, poison: true}, {status: 413, poison: true}, {status: 422, poison: true},
		{status: 401, stop: true}, {status: 403, stop: true}, {status: 410, stop: true},
		{status: 404, wait: true}, {status: 408, wait: true}, {status: 429, wait: true}, {status: 500, wait: true}, {status: 503, wait: true},
		{status: 429, header: "Retry-After", value: "7", wait: true, after: 7 * time.Second},
		{status: 503, header: "Retry-After", value: "99999999999999999", wait: true, after: time.Hour},
		{status: 503, header: "Retry-After", value: "86400", wait: true, after: time.Hour},
		{status: 503, header: "Retry-After", value: "-5", wait: true},
		{status: 503, header: "Retry-After", value: "Wed, 21 Oct 2015 07:28:00 GMT", wait: true},
		{status: 503, header: "Retry-After", value: "Wed, 21 Oct 2315 07:28:00 GMT", wait: true, after: time.Hour},
		{status: 307, header: "Location", value: other.URL, stop: true},
		{status: 307, header: "Location", value: "/moved", ok: true},
		{status: 302, header: "Location", value: "/moved", stop: true},
		{status: 308, header: "Location", value: "/moved", ok: true},
		{status: 307, header: "Location", value: "", wait: false, poison: true},
	} {
		r.answer = func(w http.ResponseWriter, req *http.Request) bool {
			if req.URL.Path == "/moved" {
				return false
			}
			w.Header().Set(test.header, test.value)
			w.WriteHeader(test.status)
			_, _ = io.WriteString(w, strings.Repeat("no ", 100_000))
			return true
		}
		sink := target{url: r.url}.open(t, "t")
		n, err := sink.Send(t.Context(), messages("t", 1, 1))
		if test.ok {
			require.NoError(t, err, "%+v", test)
			require.Equal(t, 1, n)
			continue
		}
		require.Error(t, err, "%+v", test)
		require.NotContains(t, err.Error(), testSecret)
		require.Less(t, len(err.Error()), 600)
		var poison *PoisonError
		var stop *PermanentError
		var later *LaterError
		require.Equal(t, test.poison, asError(err, &poison), "%+v %v", test, err)
		require.Equal(t, test.stop, asError(err, &stop), "%+v %v", test, err)
		require.Equal(t, test.after > 0, asError(err, &later), "%+v %v", test, err)
		if later != nil {
			require.Equal(t, test.after, later.After)
		}
	}
}

// The bridge waits as long as Retry-After says. If the receiver is gone (410), the bridge stops, and the offset stays before the
// refused message.
func TestWebhookOfATopic(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, 1, 10)
		r := newReceiver(t)
		var asked time.Time
		r.answer = func(w http.ResponseWriter, req *http.Request) bool {
			switch req.Header.Get("ce-subject") {
			case "3":
				if asked.IsZero() {
					asked = time.Now()
					w.Header().Set("Retry-After", "1")
					w.WriteHeader(http.StatusServiceUnavailable)
					return true
				}
				if time.Since(asked) < time.Second {
					t.Error("the bridge did not wait for Retry-After")
				}
			case "7":
				w.WriteHeader(http.StatusUnprocessableEntity)
				return true
			case "9":
				w.WriteHeader(http.StatusGone)
				return true
			}
			return false
		}
		to, err := Parse(r.url("orders"), "orders")
		require.NoError(t, err)
		err = run(t, db, to, toEnd).wait(t)
		require.ErrorAs(t, err, new(*PermanentError))
		require.ErrorContains(t, err, "410 Gone")
		require.Equal(t, uint64(8), settled(t, db))
		var ids []string
		for _, m := range r.got["orders"] {
			ids = append(ids, m.payload)
		}
		require.Equal(t, []string{"1", "2", "3", "4", "5", "6", "8"}, ids)
	})
}

// ce-source= and ce-type= in the URL set the event's source and type. The receiver gets neither these options nor the secret,
// but all other parameters.
func TestWebhookOptions(t *testing.T) {
	mysqltest.Once(t)
	var got *http.Request
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got = r }))
	defer server.Close()
	to := target{url: func(string) string { return server.URL + "/in?ce-source=/shop&ce-type=shop.paid&timeout=5s&tenant=7" }}
	send(t, to.open(t, "t"), messages("t", 1, 1), 1)
	require.Equal(t, "/shop", got.Header.Get("Ce-Source"))
	require.Equal(t, "shop.paid", got.Header.Get("Ce-Type"))
	require.Equal(t, "tenant=7", got.URL.RawQuery)
}

// An error contains only the beginning of the receiver's answer, without the secrets of the URL in any form.
func TestWebhookHidesItsURL(t *testing.T) {
	mysqltest.Once(t)
	const path, token, password = "/services/T0000/s3cr3t-path", "t0k+en&/x", "p"
	for what, answer := range map[string]func(w http.ResponseWriter, r *http.Request){
		"path": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusNotFound)
			_, _ = fmt.Fprintf(w, `no %s here, nor s3cr3t-path, nor {"url":"\/services\/T0000\/s3cr3t-path"}`, r.URL.Path)
		},
		"query": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusBadRequest)
			_, _ = fmt.Fprintf(w, "%s is wrong: %s, %q", r.URL, r.URL.RawQuery, r.URL.Query().Get("token"))
		},
		"beginning": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, strings.Repeat(".", 195)+r.URL.Path)
		},
		"status": func(w http.ResponseWriter, r *http.Request) {
			conn, out, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(out, "HTTP/1.1 404 %s %s\r\nContent-Length: 0\r\n\r\n", strings.Repeat("no ", 10_000), r.URL.Path)
			_ = errors.Join(out.Flush(), conn.Close())
		},
		"no HTTP": func(w http.ResponseWriter, r *http.Request) {
			conn, out, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(out, "ERR %s %s\r\n\r\n", r.URL, strings.Repeat("no ", 10_000))
			_ = errors.Join(out.Flush(), conn.Close())
		},
		"location": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", "http://[::1%25]:x"+r.URL.String())
			w.WriteHeader(http.StatusTemporaryRedirect)
		},
	} {
		server := httptest.NewServer(http.HandlerFunc(answer))
		url := strings.Replace(server.URL, "http://", "http://me:"+password+"@", 1) + path + "?token=" + neturl.QueryEscape(token)
		d, err := Parse(url, "t")
		require.NoError(t, err)
		sink, err := d.Open(t.Context())
		require.NoError(t, err)
		_, err = sink.Send(t.Context(), messages("t", 1, 1))
		require.Error(t, err, what)
		for _, secret := range []string{"T0000", "s3cr3t", token, neturl.QueryEscape(token)} {
			require.NotContains(t, err.Error(), secret, what)
		}
		require.Less(t, len(err.Error()), 800, what)
		require.NoError(t, sink.Close())
		server.Close()
	}
}

// If a receiver does not answer, or does not finish its answer, the bridge gives up after timeout= and tries again.
func TestWebhookWithoutAnswer(t *testing.T) {
	mysqltest.Once(t)
	r := newReceiver(t)
	ended := make(chan struct{}, 10)
	var wrote atomic.Int64 // bytes of the endless body
	for what, answer := range map[string]func(w http.ResponseWriter, req *http.Request){
		"silent": func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
		"a body that stops": func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_ = http.NewResponseController(w).Flush()
			<-req.Context().Done()
		},
		"an endless body": func(w http.ResponseWriter, req *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			for req.Context().Err() == nil {
				n, err := io.WriteString(w, strings.Repeat("no ", 10_000))
				if wrote.Add(int64(n)); err != nil {
					return
				}
			}
		},
	} {
		var asked atomic.Bool
		r.answers(func(w http.ResponseWriter, req *http.Request) bool {
			asked.Store(true)
			_, _ = io.Copy(io.Discard, req.Body) // otherwise the server does not notice that the client is gone
			answer(w, req)
			ended <- struct{}{}
			return true
		})
		for sent := false; !sent || !asked.Load(); sent = true { // on a busy machine the request may not arrive within 1 s
			sink := target{url: func(topic string) string { return r.url(topic) + "&timeout=1s" }}.open(t, "t")
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			n, err := sink.Send(ctx, messages("t", 1, 1))
			require.NoError(t, ctx.Err(), what)
			cancel()
			require.Zero(t, n, what)
			requireTransient(t, err)
			require.Less(t, len(err.Error()), 600, what)
			require.NoError(t, sink.Close())
		}
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatal(what + ": the connection stays open")
		}
	}
	require.Less(t, wrote.Load(), int64(32<<20), "the bridge read more than the beginning of the answer and the sockets' buffers")
	r.answers(nil)
	send(t, target{url: r.url}.open(t, "t"), messages("t", 1, 1), 1)
	require.Equal(t, wanted(messages("t", 1, 1)), r.stored("t"))
}

// timeout= raises the limit of a Send, but never lowers it.
func TestWebhookTimeout(t *testing.T) {
	mysqltest.Once(t)
	db, err := notify.Open("me@tcp(127.0.0.1:1)/db")
	require.NoError(t, err)
	defer db.Close()
	for query, want := range map[string]time.Duration{"": 30 * time.Second, "?timeout=1s": 30 * time.Second, "?timeout=2m": 121 * time.Second} {
		to, err := Parse("https://host/"+query, "orders")
		require.NoError(t, err)
		b, err := New(db, "orders", to, Options{Consumer: consumer.Options{Group: "g"}})
		require.NoError(t, err)
		require.Equal(t, want, b.options.SendTimeout, query)
	}
}
