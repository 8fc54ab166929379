package bridge

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/paho"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// broken loses acknowledgements, so that the broker delivers stored messages again.
type broken struct {
	messageSource
	lost *atomic.Int32 // the number of acknowledgements to lose
}

func (b broken) Ack(ctx context.Context) error {
	if b.lost.Load() > 0 {
		b.lost.Add(-1)
		return errors.New("the acknowledgement is lost")
	}
	return b.messageSource.Ack(ctx)
}

// source is a broker from which the import reads.
type source struct {
	name    string
	broker  *brokertest.Broker
	url     string
	publish func(t *testing.T, from, to int)
}

func natsSourceOf(t *testing.T) source {
	b := brokertest.NATS(t)
	_, err := openJetStream(t, b).CreateStream(t.Context(), jetstream.StreamConfig{Name: "in"})
	require.NoError(t, err)
	return source{name: "nats", broker: b, url: b.URL("stream=in"), publish: func(t *testing.T, from, to int) {
		js := openJetStream(t, b)
		for id := from; id <= to; id++ {
			_, err := js.PublishMsg(t.Context(), &nats.Msg{Subject: "in", Data: []byte(strconv.Itoa(id)), Header: nats.Header{"kind": {"k\xff"}}})
			require.NoError(t, err)
		}
	}}
}

func redisSourceOf(t *testing.T) source {
	b := brokertest.Redis(t, "appendfsync always")
	return source{name: "redis", broker: b, url: b.URL("stream=in"), publish: func(t *testing.T, from, to int) {
		client := openRedis(t, b)
		for id := from; id <= to; id++ {
			require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", Values: []any{"payload", id, "kind", "k\xff"}}).Err())
		}
	}}
}

func mqttSourceOf(t *testing.T) source {
	b := brokertest.MosquittoSaving(t)
	s := &subscriber{b: b, topic: "in"} // here it publishes
	return source{name: "mqtt", broker: b, url: b.URL("topic=in"), publish: func(t *testing.T, from, to int) {
		client := s.connect(t)
		defer func() { _ = client.Disconnect(&paho.Disconnect{}) }()
		for id := from; id <= to; id++ {
			properties := &paho.PublishProperties{}
			properties.User.Add("message-id", fmt.Sprint("m", id))
			properties.User.Add("kind", "k")
			_, err := client.Publish(t.Context(), &paho.Publish{Topic: "in", QoS: 1, Payload: []byte(strconv.Itoa(id)), Properties: properties})
			require.NoError(t, err)
		}
	}}
}

func rabbitSourceOf(t *testing.T) source { return rabbitQueue(t, brokertest.RabbitMQ(t), "in") }

func rabbitQueue(t *testing.T, b *brokertest.Broker, queue string) source {
	_, err := openAMQP(t, b).QueueDeclare(queue, true, false, false, false, nil)
	require.NoError(t, err)
	pause(t.Context(), amqpSettles) // RabbitMQ may lose a newer queue when it is killed
	return source{name: "amqp", broker: b, url: b.URL("queue=" + queue), publish: func(t *testing.T, from, to int) {
		channel := openAMQP(t, b)
		require.NoError(t, channel.Confirm(false))
		for id := from; id <= to; id++ {
			confirm, err := channel.PublishWithDeferredConfirm("", queue, false, false, amqp.Publishing{
				MessageId: fmt.Sprint("m", id), Body: []byte(strconv.Itoa(id)), DeliveryMode: amqp.Persistent, Headers: amqp.Table{"kind": "k"},
			})
			require.NoError(t, err)
			require.True(t, confirm.Wait())
		}
	}}
}

// runImport starts an import that runs during the test.
func runImport(t *testing.T, db *notify.DB, from *origin, options ImportOptions) *running {
	t.Helper()
	return runImportFor(t, db, from, options, importPatience)
}

// runImportFor is runImport with another limit for slow steps.
func runImportFor(t *testing.T, db *notify.DB, from *origin, options ImportOptions, patience time.Duration) *running {
	t.Helper()
	options.Logger, options.Retry = slog.New(slog.DiscardHandler), atOnce
	i, err := newImport(db, from, "orders", options)
	require.NoError(t, err)
	i.patience = patience
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r := &running{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = i.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

func payloads(t *testing.T, db *notify.DB) (all []string) {
	t.Helper()
	require.NoError(t, db.Pool().SelectContext(t.Context(), &all, "SELECT payload FROM orders ORDER BY id"))
	return all
}

func numbers(n int) (all []string) {
	for i := 1; i <= n; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}

// An import stores a broker's messages in order and once, although acknowledgements are lost, a second import follows the first,
// and the broker is killed in between.
func TestImport(t *testing.T) {
	eachOrigin(t, func(t *testing.T, s *mysqltest.Server, from source) { from.test(t, openTopic(t, s)) })
}

// eachOrigin runs f with every broker: see [mysqltest.EachCase]. With RabbitMQ, which starts slowly, TestAMQP does, except in the long
// form.
func eachOrigin(t *testing.T, f func(t *testing.T, s *mysqltest.Server, from source)) {
	t.Helper()
	origins := []func(t *testing.T) source{natsSourceOf, redisSourceOf, mqttSourceOf}
	if mysqltest.Long() {
		origins = append(origins, rabbitSourceOf)
	}
	mysqltest.EachCase(t, origins, func(t *testing.T, s *mysqltest.Server, open func(t *testing.T) source) {
		from := open(t)
		t.Run(from.name, func(t *testing.T) { f(t, s, from) })
	})
}

func (from source) test(t *testing.T, db *notify.DB) {
	origin, err := parseOrigin(from.url, "orders")
	require.NoError(t, err)
	require.NotContains(t, origin.Name, brokertest.Password)
	var lost, known atomic.Int32
	lost.Store(3)
	faulty := *origin
	faulty.Open = func(ctx context.Context) (messageSource, error) {
		source, err := origin.Open(ctx)
		return broken{source, &lost}, err
	}
	options := ImportOptions{Batch: 10, Stored: func(_, there int) { known.Add(int32(there)) }}
	one := runImport(t, db, &faulty, options)
	if from.name == "mqtt" { // MQTT keeps messages only for existing subscriptions
		from.publish(t, 1, 1)
		require.Eventually(t, func() bool {
			from.publish(t, 1, 1)
			return len(payloads(t, db)) > 0
		}, patience, 50*time.Millisecond)
		from.publish(t, 2, 50)
	} else {
		from.publish(t, 1, 50)
	}
	require.Eventually(t, func() bool { return len(payloads(t, db)) >= 50 }, patience, 25*time.Millisecond)
	require.Eventually(t, func() bool { return lost.Load() == 0 && known.Load() > 0 }, patience, 25*time.Millisecond, "the broker delivered no message again")
	one.stop()
	require.NoError(t, one.wait(t))
	require.Equal(t, numbers(50), payloads(t, db))
	var header string
	require.NoError(t, db.Pool().GetContext(t.Context(), &header, `SELECT JSON_UNQUOTE(JSON_EXTRACT(headers, '$.kind')) FROM orders WHERE id = 1`))
	require.True(t, strings.HasPrefix(header, "k"), header)

	two := runImport(t, db, origin, options)
	from.publish(t, 51, 60)
	require.Eventually(t, func() bool { return len(payloads(t, db)) >= 60 }, patience, 25*time.Millisecond)
	from.broker.Kill()
	from.broker.Restart()
	from.publish(t, 61, 70)
	require.Eventually(t, func() bool { return len(payloads(t, db)) >= 70 }, patience, 25*time.Millisecond)
	two.stop()
	require.NoError(t, two.wait(t))
	require.Equal(t, numbers(70), payloads(t, db))

	// The import stores waiting messages in batches. A transaction for each message would take most of the time.
	const waiting = 600
	from.publish(t, 71, 70+waiting)
	var stored, transactions atomic.Int32
	three := runImport(t, db, origin, ImportOptions{Stored: func(n, _ int) {
		transactions.Add(1)
		stored.Add(int32(n))
	}})
	require.Eventually(t, func() bool { return stored.Load() >= waiting }, patience, time.Millisecond)
	three.stop()
	require.NoError(t, three.wait(t))
	require.Equal(t, numbers(70+waiting), payloads(t, db))
	require.Less(t, transactions.Load(), int32(waiting/10))

	// Refused credentials and an unreachable broker are errors at the start.
	refused, err := parseOrigin(strings.Replace(from.url, brokertest.Password, wrongPassword, 1), "orders")
	require.NoError(t, err)
	err = runImport(t, db, refused, ImportOptions{}).wait(t)
	require.ErrorAs(t, err, new(*OpenError))
	require.ErrorAs(t, err, new(*PermanentError))
	require.NotContains(t, err.Error(), wrongPassword)
	once, err := newImport(db, refused, "orders", ImportOptions{})
	require.NoError(t, err)
	require.ErrorAs(t, once.Run(t.Context()), new(*OpenError))
	require.ErrorIs(t, once.Run(t.Context()), notify.ErrClosed)
	from.broker.Stop()
	err = runImport(t, db, origin, ImportOptions{}).wait(t)
	require.ErrorAs(t, err, new(*OpenError))
	requireTransient(t, err)
}

// If the import can't store messages, it returns an error and the messages stay at the broker.
func TestImportIntoNothing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		b := brokertest.Redis(t)
		client := openRedis(t, b)
		origin, err := parseOrigin(b.URL("stream=in"), "orders")
		require.NoError(t, err)
		require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", Values: []any{"a", "1", "b", "2"}}).Err())
		db := openTopic(t, s)
		_, err = db.Pool().ExecContext(t.Context(), "DROP TABLE orders")
		require.NoError(t, err)
		err = runImport(t, db, origin, ImportOptions{}).wait(t)
		require.ErrorIs(t, err, notify.ErrNoTable)
		// The error comes before the first message.
		away, err := parseOrigin("redis://127.0.0.1:1?stream=in", "orders")
		require.NoError(t, err)
		require.ErrorIs(t, runImport(t, db, away, ImportOptions{}).wait(t), notify.ErrNoTable)
		_, err = db.Pool().ExecContext(t.Context(), "CREATE TABLE orders (id INT PRIMARY KEY, payload INT)")
		require.NoError(t, err)
		require.ErrorIs(t, runImport(t, db, away, ImportOptions{}).wait(t), notify.ErrNotTopic)
		_, err = db.Pool().ExecContext(t.Context(), "DROP TABLE mqnotify_import")
		require.NoError(t, err)
		require.ErrorIs(t, runImport(t, db, origin, ImportOptions{}).wait(t), notify.ErrNoState)

		db = openTopic(t, s)
		r := runImport(t, db, origin, ImportOptions{Keep: -1})
		require.Eventually(t, func() bool { return len(payloads(t, db)) == 1 }, patience, 25*time.Millisecond)
		require.JSONEq(t, `{"a":"1","b":"2"}`, payloads(t, db)[0])
		r.stop()
		require.NoError(t, r.wait(t))
	})
}

// The import deletes the stored ids of messages after Keep.
func TestImportDeletesOldIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO mqnotify_import VALUES "+
			"('orders', 'x', 'old', NOW() - INTERVAL 2 HOUR), ('orders', 'x', 'new', NOW()), ('orders', 'y', 'old', NOW() - INTERVAL 2 HOUR)")
		require.NoError(t, err)
		i, err := newImport(db, &origin{Name: "x", Key: "x"}, "orders", ImportOptions{Keep: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer func() { require.NoError(t, i.producer.Close()) }() // Run closes it at its end
		require.NoError(t, i.prune(t.Context()))
		var left []string
		require.NoError(t, db.Pool().SelectContext(t.Context(), &left, "SELECT CONCAT(source, message_id) FROM mqnotify_import ORDER BY 1"))
		require.Equal(t, []string{"xnew", "yold"}, left)
		_, err = i.store(t.Context(), []received{{ID: strings.Repeat("long", 1000)}, {ID: strings.Repeat("long", 1000)}, {ID: "new"}, {}, {}})
		require.NoError(t, err)
		require.Len(t, payloads(t, db), 3)

		// If more ids have expired than one pass deletes, every pass deletes some, not only one pass a minute.
		_, err = db.Pool().ExecContext(t.Context(), "INSERT INTO mqnotify_import SELECT 'orders', 'x', CONCAT('old', a.i, '.', b.i), "+
			"NOW() - INTERVAL 2 HOUR FROM ("+numbersSQL+") a, ("+numbersSQL+") b LIMIT 12000")
		require.NoError(t, err)
		require.NoError(t, i.prune(t.Context()))
		for range 2 {
			require.NoError(t, i.pass(t.Context(), given{{}}))
		}
		require.NoError(t, db.Pool().SelectContext(t.Context(), &left, "SELECT message_id FROM mqnotify_import WHERE source = 'x' AND message_id LIKE 'old%'"))
		require.Empty(t, left)
		require.False(t, i.behind)
	})
}

// The import deletes no id before Keep is over, even if the clocks have gone forward meanwhile.
func TestImportKeepsIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, err := notify.OpenConfig(s.ClocksForward(t, s.Database(t)))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		for _, age := range []string{"23.5", "24.5"} {
			mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_import VALUES ('orders', 'x', ?, FROM_UNIXTIME(UNIX_TIMESTAMP() - 3600 * ?))", age, age)
		}
		i, err := newImport(db, &origin{Name: "x", Key: "x"}, "orders", ImportOptions{Keep: 24 * time.Hour, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer func() { require.NoError(t, i.producer.Close()) }() // Run closes it at its end
		require.NoError(t, i.prune(t.Context()))
		require.Equal(t, []string{"23.5"}, mysqltest.Values[string](t, db.Pool(), "SELECT message_id FROM mqnotify_import"))
	})
}

// A broker's message can't choose the groups that receive it: the import renames headers whose names are reserved.
func TestImportReserved(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		i, err := newImport(db, &origin{Name: "x", Key: "x"}, "orders", ImportOptions{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		defer func() { require.NoError(t, i.producer.Close()) }() // Run closes it at its end
		headers := map[string]string{"Mqnotify-Retry": "other/1", fieldID: "17", "kind": "paid"}
		_, err = i.store(t.Context(), []received{{ID: "a", Message: producer.Message{Headers: headers}}})
		require.NoError(t, err)
		var stored string
		require.NoError(t, db.Pool().GetContext(t.Context(), &stored, "SELECT headers FROM orders"))
		require.JSONEq(t, `{"imported-Mqnotify-Retry":"other/1","imported-mqnotify-id":"17","kind":"paid"}`, stored)
	})
}

// numbersSQL returns 121 numbers.
var numbersSQL = "SELECT x.i * 11 + y.i AS i FROM (SELECT 0 AS i" + eleven + ") x, (SELECT 0 AS i" + eleven + ") y"

const eleven = " UNION SELECT 1 UNION SELECT 2 UNION SELECT 3 UNION SELECT 4 UNION SELECT 5 UNION SELECT 6 UNION SELECT 7" +
	" UNION SELECT 8 UNION SELECT 9 UNION SELECT 10"

// given is a source that returns the same messages from every Receive.
type given []received

func (g given) Receive(context.Context, int) ([]received, error) { return g, nil }
func (g given) Ack(context.Context) error                        { return nil }
func (g given) Close() error                                     { return nil }

func TestParseOriginRefuses(t *testing.T) {
	mysqltest.Once(t)
	for url, want := range map[string]string{
		"file:///x":                          "unknown scheme",
		"nats://me:s3cret@host":              "stream=: name it",
		"redis://me:s3cret@host":             "stream= and group=",
		"amqp://me:s3cret@host":              "queue=: name it",
		"amqp://host?queue=a&prefetch=65536": "write 65535 at most",
		"mqtt://me:s3cret@host":              "topic=: name it",
		"mqtt://me:s3cret@host?topi=x":       "topic=",
	} {
		_, err := parseOrigin(url, "orders")
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, want)
		require.NotContains(t, err.Error(), "s3cret")
	}
}
