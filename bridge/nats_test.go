package bridge

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func openJetStream(tb testing.TB, b *brokertest.Broker) jetstream.JetStream {
	tb.Helper()
	conn, err := nats.Connect(b.URL(""), nats.Timeout(patience))
	require.NoError(tb, err)
	tb.Cleanup(conn.Close)
	js, err := jetstream.New(conn, jetstream.WithDefaultTimeout(patience))
	require.NoError(tb, err)
	return js
}

// readStream returns the messages of a stream.
func readStream(tb testing.TB, b *brokertest.Broker, name string) (all []stored) {
	tb.Helper()
	js := openJetStream(tb, b)
	stream, err := js.Stream(tb.Context(), name)
	require.NoError(tb, err)
	left := int(stream.CachedInfo().State.Msgs)
	reader, err := js.OrderedConsumer(tb.Context(), name, jetstream.OrderedConsumerConfig{})
	require.NoError(tb, err)
	for left > 0 {
		batch, err := reader.Fetch(min(left, 1000), jetstream.FetchMaxWait(patience))
		require.NoError(tb, err)
		for m := range batch.Messages() {
			all = append(all, stored{m.Headers().Get(nats.MsgIdHdr), string(m.Data()), m.Headers().Get("traceparent")})
			left--
		}
		require.NoError(tb, batch.Error())
	}
	return all
}

func natsTarget(b *brokertest.Broker, query string) target {
	to := ofBroker(b, func(string) string { return query })
	to.read = func(t *testing.T, topic string) []stored { return readStream(t, b, topic) }
	to.dedupes = true
	return to
}

func TestNATS(t *testing.T) {
	mysqltest.Once(t)
	conform(t, natsTarget(brokertest.NATS(t), ""))
}

// Messages at the end of the stream are not sent again, even long after the window of duplicates.
func TestNATSPastTheWindow(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	const topic = "window"
	to := natsTarget(b, "duplicates=100ms")
	send(t, to.open(t, topic), messages(topic, 1, 20), 20)
	js := openJetStream(t, b)
	// The window has passed when the stream accepts the first message again.
	require.Eventually(t, func() bool {
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: topic, Header: nats.Header{nats.MsgIdHdr: {topic + ":1"}}})
		return err == nil && !ack.Duplicate
	}, patience, 20*time.Millisecond)
	send(t, to.open(t, topic), messages(topic, 2, 30), 30)
	got := readStream(t, b, topic)
	require.Len(t, got, 31)
	require.Equal(t, wanted(messages(topic, 21, 30)), got[21:])
}

// Messages of other subjects at the end of the stream do not reduce the number of its own messages that the sink recognizes.
func TestNATSOtherSubjects(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	js := openJetStream(t, b)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "shop", Subjects: []string{"shop.>"}, Duplicates: 100 * time.Millisecond})
	require.NoError(t, err)
	to := natsTarget(b, "stream=shop&subject=shop.orders")
	const rows = remembered + 4000
	all := messages("orders", 1, rows)
	other := func(n int) { publishMany(t, js, "shop.other", n) }
	other(100)
	send(t, to.open(t, "orders"), all[:rows-100], 4000)
	other(40_000)
	send(t, to.open(t, "orders"), all[rows-100:], 100)
	other(1)
	require.Eventually(t, func() bool { // until the window has passed
		ack, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "shop.other", Header: nats.Header{nats.MsgIdHdr: {fmt.Sprint("orders:", rows)}}})
		return err == nil && !ack.Duplicate
	}, patience, 20*time.Millisecond)
	sink := to.open(t, "orders")
	send(t, sink, all[rows-remembered:], 4000)
	stream, err := js.Stream(t.Context(), "shop")
	require.NoError(t, err)
	info, err := stream.Info(t.Context(), jetstream.WithSubjectFilter("shop.orders"))
	require.NoError(t, err)
	require.Equal(t, uint64(rows), info.State.Subjects["shop.orders"], "a message is stored twice")
}

// If its subject fills the stream before other subjects, the sink reads only a limited number of messages from the end.
func TestNATSReadsNoMoreThanTheEnd(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	js := openJetStream(t, b)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "shop", Subjects: []string{"shop.>"}})
	require.NoError(t, err)
	const many, others = 5 * remembered, 30_000
	publishMany(t, js, "shop.orders", many)
	publishMany(t, js, "shop.other", others)
	publishMany(t, js, "shop.orders", 100)
	sink, ok := natsTarget(b, "stream=shop&subject=shop.orders").open(t, "orders").(*natsSink)
	require.True(t, ok)
	_, left, err := sink.beforeEnd(t.Context(), 1, many+others+100)
	require.NoError(t, err)
	require.GreaterOrEqual(t, left, remembered)
	require.LessOrEqual(t, left, 4*remembered)
}

func publishMany(t *testing.T, js jetstream.JetStream, subject string, n int) {
	t.Helper()
	for range n {
		_, err := js.PublishAsync(subject, nil, jetstream.WithStallWait(patience))
		require.NoError(t, err)
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(patience):
		t.Fatal("the stream does not take it")
	}
}

// A different row with an id that only the stream's window of duplicates knows does not count as sent.
func TestNATSDuplicateOfAnotherRow(t *testing.T) {
	mysqltest.Once(t)
	sink := natsTarget(brokertest.NATS(t), "").open(t, "t")
	send(t, sink, messages("t", 1, 5), 5)
	send(t, sink, messages("t", 4, 6), 3) // the same rows
	other := message("t", 6)
	other.CreatedAt = other.CreatedAt.Add(time.Second)
	n, err := sink.Send(t.Context(), append(messages("t", 5, 5), other))
	require.Equal(t, 1, n)
	require.ErrorAs(t, err, new(*PermanentError))
	require.ErrorContains(t, err, "t:6 is there already")
}

// An existing stream is used if it takes the subject. The bridge does not change it.
func TestNATSStreamOfOthers(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	js := openJetStream(t, b)
	_, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "shop", Subjects: []string{"shop.*.new", "all.>"}, MaxMsgSize: 2000})
	require.NoError(t, err)
	for subject, fits := range map[string]bool{"shop.orders.new": true, "all.a.b": true, "all": false, "shop.new": false, "shop.a.b.new": false} {
		to := target{url: func(string) string { return b.URL("stream=shop&subject=" + subject) }}
		sink, err := to.parse(t, "orders").Open(t.Context())
		if fits {
			require.NoError(t, err, subject)
			require.NoError(t, sink.Close())
			continue
		}
		require.ErrorAs(t, err, new(*PermanentError), subject)
		require.ErrorContains(t, err, "shop.*.new, all.>")
	}
	to := target{url: func(string) string { return b.URL("stream=shop&subject=all.large") }}
	all := messages("large", 1, 3)
	all[1].Payload = bytes.Repeat([]byte("x"), 2001) // more than the stream allows, less than the server allows
	sink := to.open(t, "large")
	send(t, sink, all[:1], 1)
	n, err := sink.Send(t.Context(), all[1:2])
	require.Zero(t, n)
	refused := new(PoisonError)
	require.ErrorAs(t, err, &refused)
	require.Equal(t, uint64(2), refused.ID)
	send(t, to.open(t, "large"), all[2:], 1)
	require.Equal(t, wanted([]consumer.Message{all[0], all[2]}), readStream(t, b, "shop"))
}
