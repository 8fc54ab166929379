package bridge

import (
	"bytes"
	"context"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// subscriber collects the messages of a topic in a session that outlives its connections.
type subscriber struct {
	b     *brokertest.Broker
	topic string
	mu    sync.Mutex
	got   []stored
}

// connect subscribes. The broker keeps messages for the session while the subscriber is not connected.
func (s *subscriber) connect(tb testing.TB) *paho.Client {
	tb.Helper()
	conn, err := net.Dial("tcp", s.b.Addr())
	require.NoError(tb, err)
	client := paho.NewClient(paho.ClientConfig{
		ClientID: "subscriber-" + s.topic, Conn: packets.NewThreadSafeConn(conn), PacketTimeout: patience,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(m paho.PublishReceived) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			if string(m.Packet.Payload) != endMark {
				s.got = append(s.got, stored{m.Packet.Properties.User.Get(fieldMessageID), string(m.Packet.Payload), m.Packet.Properties.User.Get("traceparent")})
			} else {
				s.got = append(s.got, stored{payload: endMark})
			}
			return true, nil
		}},
	})
	expiry := uint32(3600)
	_, err = client.Connect(tb.Context(), &paho.Connect{
		ClientID: "subscriber-" + s.topic, KeepAlive: 60, Username: brokertest.User, UsernameFlag: true,
		Password: []byte(brokertest.Password), PasswordFlag: true, Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry},
	})
	require.NoError(tb, err)
	_, err = client.Subscribe(tb.Context(), &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: s.topic, QoS: 1}}})
	require.NoError(tb, err)
	return client
}

const endMark = "the end of what there is"

// read returns all messages so far. It publishes a message that marks the end.
func (s *subscriber) read(tb testing.TB) []stored {
	tb.Helper()
	client := s.connect(tb)
	defer func() { _ = client.Disconnect(&paho.Disconnect{}) }()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	_, err := client.Publish(ctx, &paho.Publish{Topic: s.topic, QoS: 1, Payload: []byte(endMark)})
	require.NoError(tb, err)
	require.Eventually(tb, func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.got) > 0 && s.got[len(s.got)-1].payload == endMark
	}, patience, 25*time.Millisecond)
	s.mu.Lock()
	defer s.mu.Unlock()
	got := s.got[:len(s.got)-1]
	s.got = nil
	return got
}

// The broker stops in an orderly way, because a killed mosquitto loses messages that it confirmed.
func TestMQTT(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Mosquitto(t)
	subscribers := map[string]*subscriber{}
	to := ofBroker(b, func(string) string { return "" })
	to.stop = b.Stop
	to.url = func(topic string) string {
		if subscribers[topic] == nil { // MQTT keeps messages only for existing subscriptions
			subscribers[topic] = &subscriber{b: b, topic: topic}
			client := subscribers[topic].connect(t)
			require.NoError(t, client.Disconnect(&paho.Disconnect{}))
		}
		return b.URL("")
	}
	to.read = func(t *testing.T, topic string) []stored { return subscribers[topic].read(t) }
	conform(t, to)
}

// With retain=, a later subscriber gets the newest message.
func TestMQTTRetain(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Mosquitto(t)
	to := target{url: func(string) string { return b.URL("retain=true&client=shop") }}
	send(t, to.open(t, "state"), messages("state", 1, 3), 3)
	s := &subscriber{b: b, topic: "state"}
	require.Equal(t, wanted(messages("state", 3, 3)), s.read(t))
}

// A message above a limit that the broker did not announce is refused by its acknowledgement. A setting that the broker does not have
// ends the bridge.
func TestMQTTRefuses(t *testing.T) {
	mysqltest.Once(t)
	// With max_queued_messages 0 mosquitto 2.0 hangs up instead.
	b := brokertest.Mosquitto(t, "message_size_limit 1000", "retain_available false", "max_queued_messages 1000")
	all := messages("t", 1, 3)
	all[1].Payload = bytes.Repeat([]byte("x"), 2000)
	n, err := target{url: func(string) string { return b.URL("client=shop") }}.open(t, "t").Send(t.Context(), all)
	require.Equal(t, 1, n)
	var refused *PoisonError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, uint64(2), refused.ID)
	_, err = target{url: func(string) string { return b.URL("retain=true&client=retains") }}.open(t, "t").Send(t.Context(), all[:1])
	require.ErrorAs(t, err, new(*PermanentError))
	require.ErrorContains(t, err, "retain")
}
