package bridge

import (
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Origins whose messages may have the same ids have different keys. Credentials, an explicit default port and options of the
// connection do not change the key.
func TestOriginKeys(t *testing.T) {
	mysqltest.Once(t)
	key := func(url string) string {
		o, err := parseOrigin(url, "orders")
		require.NoError(t, err)
		require.LessOrEqual(t, len(o.Key), 255)
		require.NotContains(t, o.Key, "s3cret")
		return o.Key
	}
	long := strings.Repeat("x", 250)
	all := map[string]bool{}
	for _, same := range [][]string{
		{"redis://h?stream=s", "redis://H:6379/0?stream=s&group=g", "redis://me:s3cret@h/?stream=s", "rediss://h/0?stream=s"},
		{"redis://h/1?stream=s"}, {"redis://other?stream=s"}, {"redis://h:6380?stream=s"}, {"redis://h?stream=t"}, {"redis://h/1?stream=1/s"},
		{"amqp://h?queue=s", "amqp://me:s3cret@h:5672/?queue=s", "amqp://h/%2F?queue=s&prefetch=5"},
		{"amqp://h/shop?queue=s"}, {"amqp://other?queue=s"}, {"amqp://h?queue=t"}, {"amqp://h/a%2Fb?queue=s"}, {"amqp://h/a?queue=b/s"},
		{"mqtt://h?topic=s", "mqtt://me:s3cret@h:1883?topic=s&client=c"},
		{"mqtt://other?topic=s"}, {"mqtt://h?topic=t"},
		{"nats://h?stream=s", "nats://other?stream=s"}, {"nats://h?stream=t"}, // the message ids distinguish streams of one name
		{"redis://h?stream=" + long}, {"redis://h?stream=" + long + "y"}, {"redis://" + long + "?stream=s"},
	} {
		first := key(same[0])
		require.False(t, all[first], "%s has the key of another origin", first)
		all[first] = true
		for _, url := range same[1:] {
			require.Equal(t, first, key(url), url)
		}
	}
}

// An import stores all entries of two streams that have one name in two databases, although the entries have the same ids.
func TestImportOfTwo(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		b := brokertest.Redis(t)
		db := openTopic(t, s)
		for i, name := range []string{"/0", "/1"} {
			url := strings.Replace(b.URL("stream=in"), "/0?", name+"?", 1)
			options, err := redis.ParseURL(strings.TrimSuffix(url, "?stream=in"))
			require.NoError(t, err)
			options.ReadTimeout, options.MaxRetries = patience, -1 // -1 because a retried XADD of the same id is refused
			client := redis.NewClient(options)
			require.NoError(t, client.FlushDB(t.Context()).Err())
			for _, id := range []string{"1-0", "2-0"} {
				require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", ID: id, Values: []any{"payload", name}}).Err())
			}
			require.NoError(t, client.Close())
			origin, err := parseOrigin(url, "orders")
			require.NoError(t, err)
			r := runImport(t, db, origin, ImportOptions{})
			require.Eventually(t, func() bool { return len(payloads(t, db)) == 2*i+2 }, patience, 25*time.Millisecond)
			r.stop()
			require.NoError(t, r.wait(t))
		}
		require.Equal(t, []string{"/0", "/0", "/1", "/1"}, payloads(t, db))
	})
}

// An import with another filter does not change an existing consumer.
func TestImportNATSFilters(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	js := openJetStream(t, b)
	stream, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "in", Subjects: []string{"in.>"}})
	require.NoError(t, err)
	open := func(query string) error {
		o, err := parseOrigin(b.URL("stream=in"+query), "orders")
		require.NoError(t, err)
		s, err := o.Open(t.Context())
		if err == nil {
			require.NoError(t, s.Close())
		}
		return err
	}
	require.NoError(t, open("&subject=in.a"))
	require.NoError(t, open("&subject=in.a"), "the same filter again")
	for _, query := range []string{"", "&subject=in.b"} {
		err = open(query)
		require.ErrorAs(t, err, new(*PermanentError))
		require.ErrorContains(t, err, `"mqnotify-orders"`)
		require.ErrorContains(t, err, "give consumer=")
	}
	require.ErrorContains(t, err, `reads ["in.a"], not ["in.b"]`)
	there, err := stream.Consumer(t.Context(), "mqnotify-orders")
	require.NoError(t, err)
	require.Equal(t, "in.a", there.CachedInfo().Config.FilterSubject)
	require.NoError(t, open("&subject=in.b&consumer=b"))
}

// Two imports with different filters into one topic have separate sessions, so the second does not end the connection of the
// first.
func TestImportMQTTSessions(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Mosquitto(t)
	var sources []messageSource
	for _, filter := range []string{"a", "b/%23"} {
		o, err := parseOrigin(b.URL("topic="+filter), "orders")
		require.NoError(t, err)
		s, err := o.Open(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, s.Close()) }()
		sources = append(sources, s)
	}
	client := (&subscriber{b: b, topic: "none"}).connect(t)
	defer func() { _ = client.Disconnect(&paho.Disconnect{}) }()
	for i, topic := range []string{"a", "b/1"} {
		_, err := client.Publish(t.Context(), &paho.Publish{Topic: topic, QoS: 1, Payload: []byte(topic)})
		require.NoError(t, err)
		got, err := sources[i].Receive(t.Context(), 10)
		require.NoError(t, err)
		require.Len(t, got, 1)
		require.Equal(t, topic, string(got[0].Payload))
		require.NoError(t, sources[i].Ack(t.Context()))
	}
}
