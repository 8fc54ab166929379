//go:build unix

package bridge

import (
	"context"
	"net"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
)

// leg is a destination of the topic in TestKilled.
type leg struct {
	name    string
	url     string
	kill    func() // kills the destination (kill -9) and starts it again; nil if it can't be killed
	read    func() []stored
	once    bool // whether duplicates are forbidden
	forgets int  // the number of confirmed messages that it may lose with each kill
	child   *child
}

func legs(t *testing.T) []*leg {
	nats, redis, hook := brokertest.NATS(t), brokertest.Redis(t, "appendfsync always"), newReceiver(t)
	path, turned := filepath.Join(t.TempDir(), "orders.jsonl"), filepath.Join(t.TempDir(), "turned.jsonl")
	again := func(b *brokertest.Broker) func() {
		return func() {
			b.Kill()
			b.Restart()
		}
	}
	rabbit, mosquitto := brokertest.RabbitMQ(t), brokertest.MosquittoSaving(t)
	s := &subscriber{b: mosquitto, topic: "orders"}
	require.NoError(t, s.connect(t).Disconnect(&paho.Disconnect{}))
	drained := s.drain(t)
	return []*leg{
		{name: "nats", url: nats.URL(""), once: true, kill: again(nats), read: func() []stored { return readStream(t, nats, "orders") }},
		{name: "redis", url: redis.URL(""), once: true, kill: again(redis), read: func() []stored { return readRedis(t, redis, "orders") }},
		{name: "file", url: "file://" + path, once: true, read: func() []stored { return readLines(t, path) }},
		{name: "rotated", url: "file://" + turned + "?rotate=20KB", once: true, read: func() (all []stored) {
			names, err := filepath.Glob(turned + "*")
			require.NoError(t, err)
			require.Greater(t, len(names), 3)
			for _, name := range names {
				all = append(all, readLines(t, name)...)
			}
			return all
		}},
		{name: "webhook", url: hook.url("orders"), kill: hook.away, read: func() []stored { return hook.stored("orders") }},
		{name: "amqp", url: rabbit.URL(""), kill: again(rabbit), read: func() []stored { return readQueue(t, rabbit, "orders") }},
		// mosquitto confirms a packet before it stores it, and only then reads the next one.
		{name: "mqtt", url: mosquitto.URL(""), kill: again(mosquitto), forgets: 1, read: func() []stored {
			drained()
			return s.read(t)
		}},
	}
}

// away cuts the receiver's connections and refuses requests for a moment.
func (r *receiver) away() {
	r.answers(func(w http.ResponseWriter, _ *http.Request) bool {
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	r.server.CloseClientConnections()
	pause(context.Background(), 100*time.Millisecond)
	r.answers(nil)
}

// drain takes messages until end is called, and connects again after each restart of the broker, so that the broker has little
// to save.
func (s *subscriber) drain(t *testing.T) (end func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var draining sync.WaitGroup
	draining.Go(func() {
		for ; ctx.Err() == nil; pause(ctx, 20*time.Millisecond) {
			s.take(ctx)
		}
	})
	end = sync.OnceFunc(func() {
		cancel()
		draining.Wait()
	})
	t.Cleanup(end)
	return end
}

// take takes messages over one connection.
func (s *subscriber) take(ctx context.Context) {
	conn, err := net.Dial("tcp", s.b.Addr())
	if err != nil {
		return // the broker has just been killed
	}
	defer conn.Close()
	gone := make(chan struct{})
	lost := sync.OnceFunc(func() { close(gone) })
	client := paho.NewClient(paho.ClientConfig{
		ClientID: "subscriber-" + s.topic, Conn: packets.NewThreadSafeConn(conn), PacketTimeout: patience,
		OnClientError: func(error) { lost() }, OnServerDisconnect: func(*paho.Disconnect) { lost() },
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){func(m paho.PublishReceived) (bool, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.got = append(s.got, stored{m.Packet.Properties.User.Get(fieldMessageID), string(m.Packet.Payload), m.Packet.Properties.User.Get("traceparent")})
			return true, nil
		}},
	})
	expiry := uint32(3600)
	connecting, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := client.Connect(connecting, &paho.Connect{
		ClientID: "subscriber-" + s.topic, KeepAlive: 60, Username: brokertest.User, UsernameFlag: true,
		Password: []byte(brokertest.Password), PasswordFlag: true, Properties: &paho.ConnectProperties{SessionExpiryInterval: &expiry},
	}); err != nil {
		return
	}
	select {
	case <-gone:
	case <-ctx.Done():
		_ = client.Disconnect(&paho.Disconnect{})
	}
	<-client.Done()
}
