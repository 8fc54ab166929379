package bridge

import (
	"bufio"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func openRedis(tb testing.TB, b *brokertest.Broker) *redis.Client {
	tb.Helper()
	options, err := redis.ParseURL(b.URL(""))
	require.NoError(tb, err)
	options.DialTimeout, options.ReadTimeout, options.WriteTimeout = patience, patience, patience
	options.MaxRetries = -1 // a retried command could add its entry twice
	client := redis.NewClient(options)
	tb.Cleanup(func() { require.NoError(tb, client.Close()) })
	return client
}

func readRedis(tb testing.TB, b *brokertest.Broker, key string) (all []stored) {
	tb.Helper()
	entries, err := openRedis(tb, b).XRange(tb.Context(), key, "-", "+").Result()
	require.NoError(tb, err)
	value := func(e redis.XMessage, name string) string {
		text, _ := e.Values[name].(string)
		return text
	}
	for _, e := range entries {
		all = append(all, stored{value(e, fieldMessageID), value(e, "payload"), value(e, "traceparent")})
	}
	return all
}

func redisTarget(b *brokertest.Broker) target {
	to := ofBroker(b, func(string) string { return "" })
	to.read = func(t *testing.T, topic string) []stored { return readRedis(t, b, topic) }
	to.dedupes = true
	return to
}

func TestRedis(t *testing.T) {
	mysqltest.Once(t)
	conform(t, redisTarget(brokertest.Redis(t, "appendfsync always")))
}

// With maxlen= a stream drops its oldest entries. A message that was trimmed counts as sent.
func TestRedisMaxLen(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Redis(t, "stream-node-max-entries 10")
	to := target{url: func(string) string { return b.URL("maxlen=20&stream=s") }}
	send(t, to.open(t, "t"), messages("t", 1, 100), 10)
	got := readRedis(t, b, "s")
	require.Less(t, len(got), 40)
	require.GreaterOrEqual(t, len(got), 20)
	send(t, to.open(t, "t"), messages("t", 1, 110), 10)
	after := readRedis(t, b, "s")
	require.Equal(t, "t:110", after[len(after)-1].id)
	require.Len(t, once(after), len(after))
}

// If the server refuses a new connection, because it has another password, no message counts as sent.
func TestRedisRefusesTheNextConnection(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Redis(t)
	to := target{url: func(string) string { return b.URL("stream=s") }}
	sink, all := to.open(t, "t"), messages("t", 1, 3)
	n, err := sink.Send(t.Context(), all[:1])
	require.NoError(t, err)
	require.Equal(t, 1, n)
	client := openRedis(t, b)
	require.NoError(t, client.ACLSetUser(t.Context(), brokertest.User, "resetpass", ">another").Err())
	require.NoError(t, client.ClientKillByFilter(t.Context(), "TYPE", "normal", "SKIPME", "yes").Err())
	n, err = sink.Send(t.Context(), all[1:])
	require.ErrorAs(t, err, new(*PermanentError))
	require.Zero(t, n)
	entries, err := client.XLen(t.Context(), "s").Result()
	require.NoError(t, err)
	require.EqualValues(t, 1, entries)
}

// A trimmed message counts as sent only if the stream has entries of this topic and of this table. It does not in a stream of
// another topic, or for a table that was emptied since.
func TestRedisMaxLenOfOthers(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Redis(t, "stream-node-max-entries 10")
	to := target{url: func(string) string { return b.URL("maxlen=20&stream=s") }}
	send(t, to.open(t, "t"), messages("t", 1, 100), 10)
	before := readRedis(t, b, "s")
	emptied := messages("t", 1, 5)
	for i := range emptied {
		emptied[i].CreatedAt = emptied[i].CreatedAt.Add(time.Second)
	}
	for what, others := range map[string][]consumer.Message{"another topic": messages("other", 1, 5), "emptied": emptied} {
		n, err := to.open(t, others[0].Topic).Send(t.Context(), others)
		require.Zero(t, n, what)
		require.ErrorAs(t, err, new(*PermanentError), what)
	}
	require.Equal(t, before, readRedis(t, b, "s"))
}

// A stream with entries of other writers is an error, because the sink would take a new row's id for one that was sent.
func TestRedisStreamOfOthers(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Redis(t)
	client := openRedis(t, b)
	for stream, id := range map[string]string{"past": "1000-0", "same": "1-0"} {
		require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: stream, ID: id, Values: []any{"a", "b"}}).Err())
		to := target{url: func(string) string { return b.URL("stream=" + stream) }}
		n, err := to.open(t, "t").Send(t.Context(), messages("t", 1, 5))
		require.Zero(t, n)
		require.ErrorAs(t, err, new(*PermanentError), stream)
	}
	require.NoError(t, client.Set(t.Context(), "text", "x", 0).Err())
	n, err := target{url: func(string) string { return b.URL("stream=text") }}.open(t, "t").Send(t.Context(), messages("t", 1, 5))
	require.Zero(t, n)
	require.ErrorAs(t, err, new(*PermanentError))
	require.ErrorContains(t, err, "is no stream")
}

// A server that is out of memory accepts none of the messages of a Send, so their order stays.
func TestRedisOutOfMemory(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Redis(t)
	client := openRedis(t, b)
	to := target{url: func(string) string { return b.URL("") }}
	sink := to.open(t, "t")
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "1").Err())
	n, err := sink.Send(t.Context(), messages("t", 1, 5))
	require.Zero(t, n)
	requireTransient(t, err)
	require.NoError(t, client.ConfigSet(t.Context(), "maxmemory", "0").Err())
	send(t, sink, messages("t", 1, 5), 5)
	require.Equal(t, wanted(messages("t", 1, 5)), readRedis(t, b, "t"))
}

// A node of a cluster that does not have the stream is an error that names the other node. The server here is a stub, because a
// cluster has three processes.
func TestRedisOfACluster(t *testing.T) {
	mysqltest.Once(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer func() { _ = conn.Close() }()
				answerMoved(conn)
			})
		}
	})
	t.Cleanup(func() {
		require.NoError(t, listener.Close())
		serving.Wait()
	})
	url := "redis://" + listener.Addr().String() + "/0"
	sink := target{url: func(string) string { return url }}.open(t, "t")
	_, err = sink.Send(t.Context(), messages("t", 1, 2))
	require.ErrorAs(t, err, new(*PermanentError))
	require.ErrorContains(t, err, "name 192.0.2.7:6379")
}

// answerMoved answers each command of a connection: the key is on another node of the cluster.
func answerMoved(conn net.Conn) {
	in := bufio.NewScanner(conn)
	for in.Scan() {
		parts, err := strconv.Atoi(strings.TrimPrefix(in.Text(), "*"))
		if err != nil {
			return
		}
		var command string
		for i := range 2 * parts { // each a line with its size and a line
			if !in.Scan() {
				return
			}
			if i == 1 {
				command = strings.ToUpper(in.Text())
			}
		}
		answer := "-MOVED 1 192.0.2.7:6379\r\n"
		switch command {
		case "PING":
			answer = "+PONG\r\n"
		case "HELLO", "CONFIG":
			answer = "-ERR unknown command\r\n"
		case "CLIENT", "SELECT":
			answer = "+OK\r\n"
		}
		if _, err := io.WriteString(conn, answer); err != nil {
			return
		}
	}
}
