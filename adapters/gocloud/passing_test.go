package gocloud

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"
	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/driver"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

const patience = time.Minute

// kept is a visibility timeout that is longer than any test.
const kept = time.Hour

// failures counts the errors that the driver returned. The Go CDK may retry after them.
type failures struct{ n atomic.Int64 }

func (f *failures) count(err error) error {
	if err != nil {
		f.n.Add(1)
	}
	return err
}

func (f *failures) await(t *testing.T) {
	t.Helper()
	require.Eventually(t, func() bool { return f.n.Load() > 0 }, patience, 25*time.Millisecond)
}

type countedTopic struct {
	*topic
	failures
}

func (c *countedTopic) SendBatch(ctx context.Context, messages []*driver.Message) error {
	return c.count(c.topic.SendBatch(ctx, messages))
}

type countedSubscription struct {
	*subscription
	failures
}

func (c *countedSubscription) SendAcks(ctx context.Context, ids []driver.AckID) error {
	return c.count(c.subscription.SendAcks(ctx, ids))
}

// prepare makes the topic "orders" with the subscription "mailer".
func prepare(t *testing.T, db *notify.DB) {
	t.Helper()
	require.NoError(t, CreateTopic(t.Context(), db, "orders"))
	require.NoError(t, CreateSubscription(t.Context(), db, "orders", "mailer"))
}

func send(t *testing.T, db *notify.DB, bodies ...string) {
	t.Helper()
	topic := OpenTopic(db, "orders")
	defer func() { require.NoError(t, topic.Shutdown(context.WithoutCancel(t.Context()))) }()
	for _, body := range bodies {
		require.NoError(t, topic.Send(t.Context(), &pubsub.Message{Body: []byte(body)}))
	}
}

func begin(t *testing.T, db *notify.DB) *sqlx.Tx {
	t.Helper()
	tx, err := db.Pool().BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	return tx
}

// waiting waits until a transaction waits for a lock. It polls less often than every 100 ms, because the server repeats its last
// answer to a faster reader.
func waiting(t *testing.T, db *notify.DB) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		return db.Pool().Get(&n, "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'") == nil && n > 0
	}, patience, 150*time.Millisecond)
}

// A message that is acknowledged while the server is unreachable becomes done as soon as the server is reachable, and the
// subscription continues.
func TestAckWithoutServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		proxy := s.Proxy(t)
		open := func() *notify.DB {
			db, err := notify.OpenConfig(config)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			return db
		}
		direct := open()
		config = proxy.Config(config)
		db := open()
		require.NoError(t, schema.Init(t.Context(), direct.Pool()))
		prepare(t, direct)
		send(t, direct, "first")
		d := &countedSubscription{subscription: newSubscription(db, "orders", "mailer", SubscriptionOptions{Visibility: kept})}
		sub := pubsub.NewSubscription(d, nil, nil)
		defer func() { require.NoError(t, sub.Shutdown(context.WithoutCancel(t.Context()))) }()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		first, err := sub.Receive(ctx)
		require.NoError(t, err)
		proxy.Down()
		first.Ack()
		d.await(t)
		proxy.Up()
		send(t, direct, "second")
		second, err := sub.Receive(ctx)
		require.NoError(t, err)
		require.Equal(t, "second", string(second.Body))
		second.Ack()
		require.Eventually(t, func() bool {
			var done int
			return direct.Pool().Get(&done, "SELECT COUNT(*) FROM mqnotify_task WHERE state = 'done' AND attempts = 1") == nil && done == 2
		}, patience, 25*time.Millisecond)
	})
}

// A message whose receivers vanish comes back every time.
func TestLapses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := database(t, s)
		prepare(t, db)
		send(t, db, "first")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'in progress', claim_order = 0, owner = 'gone', attempts = 6, lapses = 5,"+
			" state_at = UTC_TIMESTAMP(6)")
		sub := newSubscription(db, "orders", "mailer", SubscriptionOptions{})
		defer func() { require.NoError(t, sub.Close()) }()
		sub.begin()
		require.Eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT lapses FROM mqnotify_task") == 6
		}, patience, 25*time.Millisecond)
		require.NotEqual(t, "dead", mysqltest.Value[string](t, db.Pool(), "SELECT state FROM mqnotify_task"))
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) WHERE state = 'failed'") // do not wait
		require.Eventually(t, func() bool {
			messages, err := sub.ReceiveBatch(t.Context(), 1)
			require.NoError(t, err)
			return len(messages) == 1 && string(messages[0].Body) == "first"
		}, patience, time.Millisecond)
	})
}

// A subscription starts as soon as its server is reachable.
func TestReceiveWithoutServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		proxy := s.Proxy(t)
		proxy.Down()
		direct, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, direct.Close()) }()
		db, err := notify.OpenConfig(proxy.Config(config))
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, schema.Init(t.Context(), direct.Pool()))
		prepare(t, direct)
		send(t, direct, "hello")
		s1 := newSubscription(db, "orders", "mailer", SubscriptionOptions{Visibility: kept})
		require.Eventually(t, func() bool { // a batch that waits for a second is empty
			_, err = s1.ReceiveBatch(t.Context(), 1)
			return err != nil
		}, patience, 25*time.Millisecond)
		require.True(t, s1.IsRetryable(err), "%v", err)
		proxy.Up()
		var messages []*driver.Message
		require.Eventually(t, func() bool {
			messages, err = s1.ReceiveBatch(t.Context(), 1)
			return err == nil && len(messages) == 1
		}, patience, 25*time.Millisecond)
		require.NoError(t, s1.SendAcks(t.Context(), []driver.AckID{messages[0].AckID}))
		require.NoError(t, s1.Close())
	})
}

// An acknowledgement of several messages takes their locks in the order of their ids, so that two of them do not deadlock.
func TestAckOrder(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := database(t, s)
		prepare(t, db)
		send(t, db, "1", "2")
		sub := newSubscription(db, "orders", "mailer", SubscriptionOptions{Visibility: kept})
		defer func() { require.NoError(t, sub.Close()) }()
		var ids []driver.AckID
		require.Eventually(t, func() bool {
			messages, err := sub.ReceiveBatch(t.Context(), 2)
			require.NoError(t, err)
			for _, m := range messages {
				ids = append(ids, m.AckID)
			}
			return len(ids) == 2
		}, patience, 25*time.Millisecond)
		id := func(i int) uint64 { return ids[i].(*delivery).task.ID }
		if id(0) < id(1) {
			slices.Reverse(ids)
		}
		const lock = "SELECT id FROM mqnotify_task WHERE id = ? FOR UPDATE"
		var got uint64
		tx := begin(t, db)
		require.NoError(t, tx.Get(&got, lock, id(1)))
		acked := mysqltest.Result(func() error { return sub.SendAcks(t.Context(), ids) })
		waiting(t, db)
		other := begin(t, db)
		require.NoError(t, other.Get(&got, lock+" NOWAIT", id(0)), "the larger id is locked before the smaller one")
		require.NoError(t, other.Rollback())
		require.NoError(t, tx.Rollback())
		require.NoError(t, mysqltest.Receive(t, acked))
	})
}

// Send reaches all subscriptions of a topic, whatever their names, and neither reads nor waits for other queues.
func TestSendBesideQueues(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := database(t, s)
		require.NoError(t, CreateTopic(t.Context(), db, "orders"))
		for _, name := range []string{"a", "order", "orders", "orders-", "orders0", "orders/", "ORDERS/mailer", "z"} {
			require.NoError(t, queue.Create(t.Context(), db, name, queue.Options{}))
		}
		mine := []string{"mailer", "\x01odd", "überall", "\U0010ffff"}
		for i, name := range mine {
			require.NoError(t, CreateSubscription(t.Context(), db, "orders", name))
			mine[i] = "orders/" + name
		}
		topic := OpenTopic(db, "orders")
		defer func() { require.NoError(t, topic.Shutdown(context.WithoutCancel(t.Context()))) }()
		var names []string
		tx := begin(t, db)
		require.NoError(t, tx.Select(&names, "SELECT name FROM mqnotify_queue FOR UPDATE"))
		defer func() { _ = tx.Rollback() }() // rolls back before Shutdown, which would wait for this transaction
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, topic.Send(ctx, &pubsub.Message{Body: []byte("hello")}))
		require.NoError(t, db.Pool().Select(&names, "SELECT queue FROM mqnotify_task"))
		require.ElementsMatch(t, mine, names)
	})
}

// A Send or an acknowledgement that waited too long for a lock is retried until the lock is free.
func TestLockedOut(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.Params = map[string]string{"innodb_lock_wait_timeout": "1"}
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		prepare(t, db)
		to := &countedTopic{topic: &topic{db: db, name: "orders", queues: make(map[string]*queue.Queue)}}
		topic := pubsub.NewTopic(to, nil)
		defer func() { require.NoError(t, topic.Shutdown(context.WithoutCancel(t.Context()))) }()
		from := &countedSubscription{subscription: newSubscription(db, "orders", "mailer", SubscriptionOptions{Visibility: kept})}
		sub := pubsub.NewSubscription(from, nil, nil)
		defer func() { require.NoError(t, sub.Shutdown(context.WithoutCancel(t.Context()))) }()

		tx := begin(t, db)
		var ids []uint64
		require.NoError(t, tx.Select(&ids, "SELECT id FROM mqnotify_task FOR UPDATE")) // locks the gap where the next task belongs
		sent := mysqltest.Result(func() error { return topic.Send(t.Context(), &pubsub.Message{Body: []byte("1")}) })
		to.await(t)
		require.NoError(t, tx.Rollback())
		require.NoError(t, mysqltest.Receive(t, sent))

		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		m, err := sub.Receive(ctx)
		require.NoError(t, err)
		tx = begin(t, db)
		require.NoError(t, tx.Select(&ids, "SELECT id FROM mqnotify_task FOR UPDATE"))
		require.Len(t, ids, 1)
		m.Ack()
		from.await(t)
		require.NoError(t, tx.Rollback())
		require.NoError(t, topic.Send(ctx, &pubsub.Message{Body: []byte("2")}))
		m, err = sub.Receive(ctx)
		require.NoError(t, err)
		require.Equal(t, "2", string(m.Body))
		m.Ack()
	})
}

// A subscription does not end because of an error that passes, also one that a proxy sends.
func TestIsRetryable(t *testing.T) {
	mysqltest.Once(t)
	var sub subscription
	for number, want := range map[uint16]bool{
		1040: true, 1053: true, 1213: true, 1290: true, 1637: true, 1969: true, 2013: true, 3024: true, 9001: true,
		1142: false, 1146: false,
	} {
		require.Equal(t, want, sub.IsRetryable(fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: number})), number)
	}
	require.True(t, sub.IsRetryable(mysql.ErrInvalidConn))
	require.False(t, sub.IsRetryable(errEnded))
}
