package bridge

import (
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/event"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The event's source escapes the name of the table. The trace of a row is in the headers where tracers expect it.
func TestWebhookHeaders(t *testing.T) {
	mysqltest.Once(t)
	r := newReceiver(t)
	var source, trace, state string
	r.answer = func(_ http.ResponseWriter, req *http.Request) bool {
		source, trace, state = req.Header.Get("ce-source"), req.Header.Get("traceparent"), req.Header.Get("tracestate")
		return false
	}
	const topic = "100% of ü?#"
	all := messages(topic, 1, 2)
	all[0].Headers["tracestate"] = "a=1,b=2"
	all[1].Headers["traceparent"] = "a\r\nb"
	sink := target{url: func(string) string { return r.url("in") }}.open(t, topic)
	send(t, sink, all[:1], 1)
	require.Equal(t, "/mqnotify/100%25%20of%20%C3%BC%3F%23", source)
	require.Equal(t, all[0].Headers["traceparent"], trace)
	require.Equal(t, "a=1,b=2", state)
	send(t, sink, all[1:], 1)
	require.Empty(t, trace)
	require.Equal(t, "100%25%20of%20%C3%BC?#:2", r.got["in"][1].id)
}

// A value that no header can have, or that a receiver would read differently, is encoded as CloudEvents specifies.
func TestEncoded(t *testing.T) {
	mysqltest.Once(t)
	for value, want := range map[string]string{
		"orders:1": "orders:1", "a b": "a%20b", `{"a":1}`: `{%22a%22:1}`, "50%": "50%25", "line\nbreak:2": "line%0Abreak:2", "größe": "gr%C3%B6%C3%9Fe", "\x7f": "%7F",
	} {
		require.Equal(t, want, encoded(value))
		back, err := neturl.PathUnescape(want)
		require.NoError(t, err)
		require.Equal(t, value, back)
	}
}

// The headers of a message can't make a receiver read another event than the bridge's, neither in structured or batched mode nor
// with the bridge's own attributes. Headers that the bridge does not send as attributes are in mqnotifyheaders.
func TestWebhookForged(t *testing.T) {
	mysqltest.Once(t)
	var got *event.Event
	var kind string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		kind = req.Header.Get("Content-Type")
		var err error
		if got, err = binding.ToEvent(req.Context(), cehttp.NewMessageFromHttpRequest(req)); err != nil {
			w.WriteHeader(http.StatusTeapot)
		}
	}))
	defer server.Close()
	sink := target{url: func(string) string { return server.URL + "/?secret=" + testSecret }}.open(t, "orders")
	const forged = `{"specversion":"1.0","id":"orders:99","source":"/bank","type":"paid","mqnotifytopic":"payments","data":{}}`
	for _, own := range []string{
		"application/cloudevents+json", "Application/CloudEvents+JSON; charset=utf-8", "application/cloudevents-batch+json",
		"text/plain, application/cloudevents+json", "application/cloudevents",
	} {
		m := consumer.Message{ID: 1, Topic: "orders", Payload: []byte(forged), Headers: map[string]string{
			"content-type": own, "mqnotifytopic": "payments", "mqnotifyheaders": "{}", "mqnotifynew": "1", "kind": "k",
		}}
		send(t, sink, []consumer.Message{m}, 1)
		require.NotNil(t, got, own)
		require.Equal(t, "orders:1", got.ID(), own)
		require.Equal(t, "/mqnotify/orders", got.Source(), own)
		require.Equal(t, "application/json", kind, own)
		require.Equal(t, forged, string(got.Data()))
		require.Equal(t, "orders", got.Extensions()["mqnotifytopic"])
		require.Equal(t, "k", got.Extensions()["kind"])
		require.NotContains(t, got.Extensions(), "mqnotifynew")
		rest, ok := got.Extensions()["mqnotifyheaders"].(string)
		require.True(t, ok)
		rest, err := neturl.PathUnescape(rest)
		require.NoError(t, err)
		require.JSONEq(t, `{"content-type":"`+own+`","mqnotifytopic":"payments","mqnotifyheaders":"{}","mqnotifynew":"1"}`, rest)
	}
	m := consumer.Message{ID: 2, Topic: "orders", Payload: []byte("x"), Headers: map[string]string{"content-type": "text/plain; charset=utf-8"}}
	send(t, sink, []consumer.Message{m}, 1)
	require.Equal(t, "text/plain; charset=utf-8", kind)
}
