package watermill_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	adapter "github.com/mqnotify/mqnotify/adapters/watermill"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A message that is published in a transaction exists only if the transaction commits. The same holds for a delayed message.
func TestWithTx(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true, DelayQueue: "later"}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		for _, commits := range []bool{false, true} {
			tx, err := db.Pool().BeginTx(t.Context(), nil)
			require.NoError(t, err)
			in := publisher.WithTx(tx)
			require.NoError(t, in.Publish("orders", message.NewMessage("now", nil), delayed("then", time.Hour)))
			require.NoError(t, in.Close())
			require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT (SELECT COUNT(*) FROM orders) + (SELECT COUNT(*) FROM mqnotify_task)"))
			if !commits {
				require.NoError(t, tx.Rollback())
				continue
			}
			require.NoError(t, tx.Commit())
			require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
			require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state = 'scheduled'"))
		}
		plain, err := adapter.NewPublisher(db, adapter.PublisherConfig{}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, plain.Close()) }()
		require.ErrorContains(t, plain.Publish("orders", delayed("then", time.Hour)), "DelayQueue")
		require.ErrorContains(t, plain.WithTx(publisherPool{db.Pool().DB}).Publish("orders", message.NewMessage("x", nil)), "pool")
	})
}

type publisherPool struct{ *sql.DB }

func delayed(uuid string, wait time.Duration) *message.Message {
	m := message.NewMessage(uuid, nil)
	delay.Message(m, delay.For(wait))
	return m
}

// The writes of a handler in the message's transaction are stored once, however often connections are killed and messages
// refused.
func TestTransaction(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		_, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{Transaction: true}, nil)
		require.ErrorContains(t, err, "ConsumerGroup")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE done (id INT)")
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, nil)
		require.NoError(t, err)
		const count = 60
		for i := range count {
			require.NoError(t, publisher.Publish("orders", message.NewMessage(strconv.Itoa(i), nil)))
		}
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "g", Transaction: true}, nil)
		require.NoError(t, err)
		messages, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		random := mysqltest.Random(t)
		for done := 0; done < count; {
			m := mysqltest.Receive(t, messages)
			tx, ok := adapter.TxFromContext(m.Context())
			require.True(t, ok)
			_, err := tx.ExecContext(m.Context(), "INSERT INTO done VALUES (?)", m.UUID)
			killed := false
			switch random.IntN(5) {
			case 0:
				m.Nack()
				continue
			case 1:
				var id uint64
				if err == nil && tx.GetContext(m.Context(), &id, "SELECT CONNECTION_ID()") == nil {
					mysqltest.KillSession(t, db.Pool().DB, id)
					killed = true
				}
			}
			if err != nil {
				m.Nack()
				continue
			}
			m.Ack()
			if !killed {
				mysqltest.Eventually(t, "the message's transaction commits", func() bool {
					return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM done") > done
				})
				done++
			}
		}
		require.NoError(t, subscriber.Close())
		require.NoError(t, publisher.Close())
		require.Equal(t, count, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM done"))
		require.Equal(t, count, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT id) FROM done"))
	})
}

// A delayed message arrives once and not before its time, even if subscribers are closed in between. Other messages do not wait
// for it.
func TestDelay(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true, DelayQueue: "later"}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		wrapped, err := delay.NewPublisher(publisher, delay.PublisherConfig{AllowNoDelay: true})
		require.NoError(t, err)
		const count, wait = 30, 700 * time.Millisecond
		published := time.Now()
		for i := range count {
			m := message.NewMessage(fmt.Sprint("later ", i), []byte{0xff})
			m.SetContext(delay.WithContext(t.Context(), delay.For(wait)))
			require.NoError(t, wrapped.Publish("orders", m))
		}
		past := message.NewMessage("past", nil)
		past.SetContext(delay.WithContext(t.Context(), delay.Until(time.Now().Add(-time.Hour))))
		require.NoError(t, wrapped.Publish("orders", past, message.NewMessage("now", nil), delayed("in an hour", time.Hour)))
		var mu sync.Mutex
		var order []string
		var readers sync.WaitGroup
		subscribe := func(ctx context.Context) *adapter.Subscriber {
			subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "g", DelayQueue: "later"}, watermill.NopLogger{})
			require.NoError(t, err)
			messages, err := subscriber.Subscribe(ctx, "orders")
			require.NoError(t, err)
			readers.Go(func() {
				for m := range messages {
					mu.Lock()
					if m.UUID != "past" && m.UUID != "now" {
						assert.GreaterOrEqual(t, time.Since(published), wait, m.UUID)
						assert.Equal(t, []byte{0xff}, []byte(m.Payload))
					}
					order = append(order, m.UUID)
					mu.Unlock()
					m.Ack()
				}
			})
			return subscriber
		}
		came := func(n int) func() bool {
			return func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(order) >= n
			}
		}
		first := subscribe(t.Context())
		mysqltest.Eventually(t, "some messages have arrived", came(5))
		require.NoError(t, first.Close())
		second := subscribe(t.Context())
		mysqltest.Eventually(t, "all messages have arrived", came(count+2))
		mysqltest.Eventually(t, "only the message for an hour later waits", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state <> 'done'") == 1
		})
		require.NoError(t, second.Close())
		readers.Wait()
		require.Subset(t, order, []string{"past", "now"})
		require.NotContains(t, order, "in an hour")
		require.Equal(t, count+2, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"), "each was published once")
		broken := message.NewMessage("x", nil)
		broken.Metadata.Set(delay.DelayedUntilKey, "tomorrow")
		require.ErrorAs(t, publisher.Publish("orders", broken), new(*time.ParseError))
	})
}

// The adapter can make a topic's table even if all connections of the pool are in transactions that publish to the topic.
func TestWithTxOfAFullPool(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		db.Pool().SetMaxOpenConns(1)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true, DelayQueue: "later"}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		tx, err := db.Pool().BeginTx(ctx, nil)
		require.NoError(t, err)
		m := message.NewMessage("first", nil)
		m.SetContext(ctx)
		require.NoError(t, publisher.WithTx(tx).Publish("orders", m))
		require.NoError(t, tx.Commit())
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
	})
}

// A table that takes long to make delays no publish to a topic that is ready, and any other publish only until its context ends.
func TestSlowTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		type slow struct{}
		waits := make(chan bool, 10)
		config := s.Database(t)
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if ctx.Value(slow{}) != nil { // the connection that makes the table
				waits <- true
				<-ctx.Done()
				return nil, context.Cause(ctx)
			}
			return new(net.Dialer).DialContext(ctx, network, addr)
		}
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		publish := func(ctx context.Context, topic string) <-chan error {
			m := message.NewMessage("x", nil)
			m.SetContext(ctx)
			return mysqltest.Result(func() error { return publisher.Publish(topic, m) })
		}
		require.NoError(t, mysqltest.Receive(t, publish(t.Context(), "ready")))
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), slow{}, true))
		making := publish(ctx, "slow")
		defer func() {
			cancel()
			require.ErrorIs(t, mysqltest.Receive(t, making), context.Canceled)
		}()
		mysqltest.Receive(t, waits)
		require.NoError(t, mysqltest.Receive(t, publish(t.Context(), "ready")))
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, mysqltest.Receive(t, publish(ended, "another")), context.Canceled)
	})
}

// A delayed message is delivered after any number of workers have vanished.
func TestDelayLapses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true, DelayQueue: "later"}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		require.NoError(t, publisher.Publish("orders", message.NewMessage("first", nil), delayed("later", time.Hour)))
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'in progress', claim_order = 0, owner = 'gone', attempts = 6, lapses = 5,"+
			" state_at = UTC_TIMESTAMP(6)")
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "g", DelayQueue: "later"}, watermill.NopLogger{})
		require.NoError(t, err)
		defer func() { require.NoError(t, subscriber.Close()) }()
		_, err = subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		mysqltest.Eventually(t, "the claim lapses", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT lapses FROM mqnotify_task") == 6
		})
		require.NotEqual(t, "dead", mysqltest.Value[string](t, db.Pool(), "SELECT state FROM mqnotify_task"))
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) WHERE state = 'failed'") // do not wait
		mysqltest.Eventually(t, "the message is published", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders") == 2
		})
	})
}

// Delayed messages are delivered although their queue is made after the subscriber has begun.
func TestDelayQueueComesLater(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publish := func(config adapter.PublisherConfig, m *message.Message) {
			config.InitializeSchema = true
			publisher, err := adapter.NewPublisher(db, config, nil)
			require.NoError(t, err)
			require.NoError(t, publisher.Publish("orders", m))
			require.NoError(t, publisher.Close())
		}
		publish(adapter.PublisherConfig{}, message.NewMessage("first", nil)) // makes the topic alone
		var logged mysqltest.Text
		logger := watermill.NewSlogLogger(slog.New(slog.NewTextHandler(&logged, nil)))
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "g", DelayQueue: "later"}, logger)
		require.NoError(t, err)
		defer func() { require.NoError(t, subscriber.Close()) }()
		_, err = subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		mysqltest.Eventually(t, "the queue is missing", func() bool { return strings.Contains(logged.String(), "trying again") })
		publish(adapter.PublisherConfig{DelayQueue: "later"}, delayed("later", time.Millisecond))
		mysqltest.Eventually(t, "the message is published", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders") == 2
		})
	})
}
