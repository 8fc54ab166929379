package bridge

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func openAMQP(tb testing.TB, b *brokertest.Broker) *amqp.Channel {
	tb.Helper()
	conn, err := amqp.Dial(b.URL(""))
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = conn.Close() })
	channel, err := conn.Channel()
	require.NoError(tb, err)
	return channel
}

// readQueue takes all messages from a queue.
func readQueue(tb testing.TB, b *brokertest.Broker, queue string) (all []stored) {
	tb.Helper()
	channel := openAMQP(tb, b)
	for {
		m, found, err := channel.Get(queue, true)
		require.NoError(tb, err)
		if !found {
			return all
		}
		trace, _ := m.Headers["traceparent"].(string)
		require.Equal(tb, amqp.Persistent, m.DeliveryMode)
		all = append(all, stored{m.MessageId, string(m.Body), trace})
	}
}

// All subtests of a server use one RabbitMQ, because it starts slowly.
func TestAMQP(t *testing.T) {
	mysqltest.Each(t, testAMQP)
}

func testAMQP(t *testing.T, s *mysqltest.Server) {
	c := brokertest.NewCertificate(t)
	b := brokertest.RabbitMQ(t, c)
	to := ofBroker(b, func(string) string { return "" })
	to.read = func(t *testing.T, topic string) []stored { return readQueue(t, b, topic) }
	channel := openAMQP(t, b)
	for _, queue := range []string{"order", "restart", "large", "headers", "close", "frozen"} { // the sink makes the queue "away"
		_, err := channel.QueueDeclare(queue, true, false, false, false, nil)
		require.NoError(t, err)
	}
	conform(t, to)
	t.Run("huge headers", func(t *testing.T) { testHugeHeaders(t, b, 200_000) })
	t.Run("exchange", func(t *testing.T) { testExchange(t, b) })
	t.Run("gone later", func(t *testing.T) { testGoneLater(t, b) })
	t.Run("handshake ends", func(t *testing.T) { testHandshakeEnds(t, b) })
	t.Run("open frozen", func(t *testing.T) { testOpenFrozen(t, b) })
	t.Run("TLS", func(t *testing.T) { testTLS(t, "amqp", c, b.SecureURL) })
	t.Run("import killed", func(t *testing.T) { rabbitQueue(t, b, "killed").testKilled(t, s.Start(t)) })
	t.Run("import", func(t *testing.T) { rabbitQueue(t, b, "in").test(t, openTopic(t, s)) })
}

// A broker that ends the connection in the middle of the handshake does not count as refusing a password that it accepted
// before.
func testHandshakeEnds(t *testing.T, b *brokertest.Broker) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var cuts atomic.Bool
	var relays sync.WaitGroup
	relays.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			relays.Go(func() {
				defer func() { _ = client.Close() }()
				broker, err := net.Dial("tcp", b.Addr())
				if !assert.NoError(t, err) {
					return
				}
				relays.Go(func() {
					_, _ = io.Copy(client, broker)
					_ = client.Close()
				})
				defer func() { _ = broker.Close() }()
				if cuts.Load() { // after the protocol header and a byte of START-OK
					_, _ = io.CopyN(broker, client, 8)
					_, _ = client.Read(make([]byte, 1))
					return
				}
				_, _ = io.Copy(broker, client)
			})
		}
	})
	defer relays.Wait()
	defer func() { _ = listener.Close() }()
	to := target{url: func(string) string { return strings.Replace(b.URL(""), b.Addr(), listener.Addr().String(), 1) }}
	d, err := Parse(to.url("cut"), "cut")
	require.NoError(t, err)
	sink, err := d.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	cuts.Store(true)
	_, err = d.Open(t.Context())
	requireTransient(t, err)
	require.ErrorIs(t, err, amqp.ErrCredentials)
	cuts.Store(false)
	sink, err = d.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	// Until the broker has accepted the credentials once, a cut connection counts as their refusal.
	cuts.Store(true)
	never, err := Parse(to.url("cut"), "cut")
	require.NoError(t, err)
	_, err = never.Open(t.Context())
	require.ErrorAs(t, err, new(*PermanentError))
}

// A message to an exchange that no queue takes is an error, and the bridge sends it again until a queue does. An exchange or a
// queue that differs from the URL is an error at the start.
func testExchange(t *testing.T, b *brokertest.Broker) {
	channel := openAMQP(t, b)
	require.NoError(t, channel.ExchangeDeclare("shop", amqp.ExchangeTopic, true, false, false, false, nil))
	to := target{url: func(string) string { return b.URL("exchange=shop&key=orders.new") }}
	sink := to.open(t, "orders")
	n, err := sink.Send(t.Context(), messages("orders", 1, 3))
	require.Zero(t, n)
	requireTransient(t, err)
	require.ErrorContains(t, err, "the broker has no queue for it")
	_, err = channel.QueueDeclare("bound", true, false, false, false, nil)
	require.NoError(t, err)
	require.NoError(t, channel.QueueBind("bound", "orders.*", "shop", false, nil))
	send(t, to.open(t, "orders"), messages("orders", 1, 3), 3)
	require.Equal(t, wanted(messages("orders", 1, 3)), readQueue(t, b, "bound"))

	// An existing queue is used as it is.
	_, err = channel.QueueDeclare("quorum", true, false, false, false, amqp.Table{"x-queue-type": "quorum"})
	require.NoError(t, err)
	for _, query := range []string{"queue=quorum", "queue=quorum&type=quorum"} {
		to := target{url: func(string) string { return b.URL(query) }}
		send(t, to.open(t, "orders"), messages("orders", 1, 3), 3)
	}
	require.Len(t, readQueue(t, b, "quorum"), 6)

	for _, query := range []string{"exchange=none", "queue=bound&type=quorum"} {
		d, err := Parse(b.URL(query), "orders")
		require.NoError(t, err)
		_, err = d.Open(t.Context())
		require.ErrorAs(t, err, new(*PermanentError), query)
		require.NotContains(t, err.Error(), brokertest.Password)
	}
}

// RabbitMQ does not find a durable queue whose node is down, so only an exchange or a queue that was never there is a permanent error.
func testGoneLater(t *testing.T, b *brokertest.Broker) {
	channel := openAMQP(t, b)
	require.NoError(t, channel.ExchangeDeclare("later", amqp.ExchangeTopic, true, false, false, false, nil))
	to, err := Parse(b.URL("exchange=later"), "orders")
	require.NoError(t, err)
	sink, err := to.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	require.NoError(t, channel.ExchangeDelete("later", false, false))
	_, err = to.Open(t.Context())
	requireTransient(t, err)

	from, err := parseOrigin(b.URL("queue=later"), "orders")
	require.NoError(t, err)
	_, err = from.Open(t.Context())
	require.ErrorAs(t, err, new(*PermanentError))
	_, err = channel.QueueDeclare("later", true, false, false, false, nil)
	require.NoError(t, err)
	source, err := from.Open(t.Context())
	require.NoError(t, err)
	require.NoError(t, source.Close())
	_, err = channel.QueueDelete("later", false, false, false)
	require.NoError(t, err)
	_, err = from.Open(t.Context())
	requireTransient(t, err)
}

func TestAMQPMissing(t *testing.T) {
	mysqltest.Once(t)
	d := &amqpDestination{}
	gone, differs := &amqp.Error{Code: amqp.NotFound}, &amqp.Error{Code: amqp.PreconditionFailed}
	require.ErrorAs(t, d.prepareError("declare", gone), new(*PermanentError))
	d.found.Store(true)
	requireTransient(t, d.prepareError("declare", gone))
	require.ErrorAs(t, d.prepareError("declare", differs), new(*PermanentError))
}
