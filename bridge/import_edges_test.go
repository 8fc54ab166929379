package bridge

import (
	"bytes"
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A message that is too large for the server ends the import with an error that names the message, at every start. Earlier
// messages are stored once. The message is stored when the server accepts its size.
func TestImportTooLarge(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		b := brokertest.Redis(t)
		client := openRedis(t, b)
		origin, err := parseOrigin(b.URL("stream=in"), "orders")
		require.NoError(t, err)
		add := func(id, payload string) {
			require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", ID: id, Values: []any{"payload", payload}}).Err())
		}
		add("1-0", "1")
		add("2-0", "2")
		add("3-0", string(bytes.Repeat([]byte{'3'}, 64<<10)))
		add("4-0", "4")
		own := s.Start(t, "--max-allowed-packet=32K", "--net-buffer-length=16K")
		db := openTopic(t, own)
		for range 2 {
			err := runImport(t, db, origin, ImportOptions{}).wait(t)
			require.ErrorAs(t, err, new(*notify.TooLargeError))
			require.ErrorContains(t, err, `the message "3-0" is too large: it and the messages behind it stay at the broker`)
			require.ErrorContains(t, err, "max_allowed_packet is 32768")
			require.Equal(t, []string{"1", "2"}, payloads(t, db))
		}
		waiting, err := client.XPending(t.Context(), "in", "mqnotify-orders").Result()
		require.NoError(t, err)
		require.EqualValues(t, 4, waiting.Count)
		_, err = db.Pool().ExecContext(t.Context(), "SET GLOBAL max_allowed_packet = 1048576")
		require.NoError(t, err)
		db.Pool().SetMaxIdleConns(0) // a session keeps the limit with which it began
		r := runImport(t, db, origin, ImportOptions{})
		require.Eventually(t, func() bool { return len(payloads(t, db)) == 4 }, patience, 25*time.Millisecond)
		r.stop()
		require.NoError(t, r.wait(t))
		require.Equal(t, "4", payloads(t, db)[3])
	})
}

// If a batch takes longer to store than a transaction may last, the import stores fewer messages at a time until they fit.
func TestImportSlowDatabase(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		b := brokertest.Redis(t)
		client := openRedis(t, b)
		origin, err := parseOrigin(b.URL("stream=in"), "orders")
		require.NoError(t, err)
		const count = 30
		for n := range count {
			require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", Values: []any{"payload", n}}).Err())
		}
		db := openTopic(t, s)
		_, err = db.Pool().ExecContext(t.Context(), "CREATE TRIGGER slow BEFORE INSERT ON orders FOR EACH ROW SET NEW.payload = IF(SLEEP(0.1), '', NEW.payload)")
		require.NoError(t, err)
		r := runImportFor(t, db, origin, ImportOptions{Batch: count}, 2*time.Second)
		require.Eventually(t, func() bool { return len(payloads(t, db)) == count }, patience, 25*time.Millisecond)
		r.stop()
		require.NoError(t, r.wait(t))
	})
}

// An entry that is deleted while it is pending becomes no row and does not stay pending.
func TestImportRedisDeleted(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.Redis(t)
	client := openRedis(t, b)
	for i := 1; i <= 4; i++ {
		require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", ID: strconv.Itoa(i) + "-0", Values: []any{"payload", i}}).Err())
	}
	origin, err := parseOrigin(b.URL("stream=in"), "orders")
	require.NoError(t, err)
	open := func() messageSource {
		s, err := origin.Open(t.Context())
		require.NoError(t, err)
		return s
	}
	one := open()
	got, err := one.Receive(t.Context(), 4)
	require.NoError(t, err)
	require.Len(t, got, 4)
	require.NoError(t, one.Close())
	require.NoError(t, client.XDel(t.Context(), "in", "1-0", "2-0", "4-0").Err())
	two := open()
	defer func() { require.NoError(t, two.Close()) }()
	// Receive gets two entries at a time, and the first two are deleted.
	got, err = two.Receive(t.Context(), 2)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.Equal(t, "3-0", got[0].ID)
	require.NoError(t, two.Ack(t.Context()))
	waiting, err := client.XPending(t.Context(), "in", "mqnotify-orders").Result()
	require.NoError(t, err)
	require.Zero(t, waiting.Count)
}

// Close ends a waiting Receive, from any goroutine, and returns pending messages to the broker.
func TestImportSourceCloses(t *testing.T) {
	mysqltest.Once(t)
	for _, begin := range []func(t *testing.T) source{natsSourceOf, redisSourceOf, mqttSourceOf} {
		from := begin(t)
		t.Run(from.name, func(t *testing.T) {
			origin, err := parseOrigin(from.url, "orders")
			require.NoError(t, err)
			s, err := origin.Open(t.Context())
			require.NoError(t, err)
			from.publish(t, 1, 5)
			var all []received
			for len(all) < 5 {
				got, err := s.Receive(t.Context(), 5)
				require.NoError(t, err)
				all = append(all, got...)
				require.NoError(t, s.Ack(t.Context()))
			}
			from.publish(t, 6, 6)
			got, err := s.Receive(t.Context(), 5)
			require.NoError(t, err)
			require.Len(t, got, 1)
			ended := make(chan error, 1)
			go func() {
				_, err := s.Receive(context.WithoutCancel(t.Context()), 5)
				ended <- err
			}()
			closed := make(chan error, 2)
			for range cap(closed) {
				go func() { closed <- s.Close() }()
			}
			for range cap(closed) {
				require.NoError(t, <-closed)
			}
			select {
			case err := <-ended:
				require.Error(t, err)
			case <-time.After(patience):
				require.Fail(t, "Close does not end Receive")
			}
		})
	}
}

// The broker redelivers at once what Close returns. Without that, this server would wait for an hour.
func TestImportNATSReturnsMessages(t *testing.T) {
	mysqltest.Once(t)
	from := natsSourceOf(t)
	from.publish(t, 1, 1)
	open := func() messageSource {
		p, err := newParams(from.url, "orders")
		require.NoError(t, err)
		conn, err := newNATS(p).connect(t.Context())
		require.NoError(t, err)
		s, err := consumeNATS(t.Context(), conn, "in", jetstream.ConsumerConfig{
			Durable: "c", AckPolicy: jetstream.AckExplicitPolicy, AckWait: time.Hour,
		})
		require.NoError(t, err)
		return s
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s := open()
	got, err := s.Receive(ctx, 5)
	require.NoError(t, err)
	require.Len(t, got, 1)
	require.NoError(t, s.Close())
	s = open()
	defer func() { require.NoError(t, s.Close()) }()
	again, err := s.Receive(ctx, 5)
	require.NoError(t, err)
	require.Equal(t, got, again)
}
