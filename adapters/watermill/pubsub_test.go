package watermill_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	adapter "github.com/mqnotify/mqnotify/adapters/watermill"
	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

const patience = 2 * time.Minute

// restartCommand is the argument with which this binary restarts the server of the test that started it.
const restartCommand = "restart-server"

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == restartCommand {
		if err := askRestart(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// Watermill's tests leave goroutines that wait on their own channels.
	const of = "github.com/ThreeDotsLabs/watermill/"
	mysqltest.Main(m,
		goleak.IgnoreTopFunction(of+"pubsub/tests.TestReconnect.func2"),
		goleak.IgnoreAnyFunction(of+"internal/subscriber.(*multiplier).Subscribe.func2"),
		goleak.IgnoreAnyFunction(of+"internal/subscriber.(*multiplier).Subscribe.func3"),
	)
}

func askRestart(addr string) error {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = conn.Read(make([]byte, 1))
	return err
}

// restarts returns a command that kills the server (kill -9) and starts it again.
func restarts(t *testing.T, s *mysqltest.Server) (command []string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.Kill()
			s.Restart(t)
			_, _ = conn.Write([]byte{1})
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
	})
	return []string{os.Args[0], restartCommand, listener.Addr().String()}
}

// form is the kind of publishers and subscribers that the suite uses.
type form struct {
	group       string // the group of subscribers that name none
	share       bool   // the members of a group share its messages
	transaction bool   // publishing is in the caller's transaction, and handling in the group's
}

// suite starts a private server and returns the arguments for Watermill's tests.
func suite(t *testing.T, s *mysqltest.Server, form form) (tests.Features, tests.PubSubConstructor, tests.ConsumerGroupPubSubConstructor) {
	t.Helper()
	own := s.Start(t, "--max-connections=2000")
	db := open(t, own)
	constructor := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		t.Helper()
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, nil)
		require.NoError(t, err)
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{
			ConsumerGroup: group, InitializeSchema: true, Transaction: form.transaction, Consumer: consumer.Options{MembersShare: form.share},
		}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { // some tests of the suite leave them open
			require.NoError(t, publisher.Close())
			require.NoError(t, subscriber.Close())
		})
		var to message.Publisher = publisher
		if form.transaction {
			to = transacting{publisher, db}
		}
		if strings.Contains(t.Name(), "/TestReconnect") {
			return to, &unhurried{Subscriber: subscriber}
		}
		return to, subscriber
	}
	features := tests.Features{
		ConsumerGroups: true, Persistent: true, NewSubscriberReceivesOldMessages: form.group == "", // a group starts at its offset
		GuaranteedOrder: !form.share, GuaranteedOrderWithSingleSubscriber: !form.share,
		ForceShort: !mysqltest.Long(),
	}
	if !racing {
		features.RestartServiceCommand = restarts(t, own)
	}
	return features, func(t *testing.T) (message.Publisher, message.Subscriber) { return constructor(t, form.group) }, constructor
}

// transacting publishes in its own transactions, as a program does that also writes something else in them.
type transacting struct {
	*adapter.Publisher
	db *notify.DB
}

func (p transacting) Publish(topic string, messages ...*message.Message) error {
	tx, err := p.db.Pool().BeginTxx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := p.WithTx(tx).Publish(topic, messages...); err != nil {
		return err
	}
	return tx.Commit()
}

// unhurried delays the last of TestReconnect's messages, because that test compares the messages with a list to which it adds a
// published message only after Publish returns.
type unhurried struct {
	*adapter.Subscriber
	passing sync.WaitGroup
}

func (u *unhurried) Close() error {
	err := u.Subscriber.Close()
	u.passing.Wait()
	return err
}

func (u *unhurried) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	const last = 10_000
	in, err := u.Subscriber.Subscribe(ctx, topic)
	if err != nil {
		return nil, err
	}
	out := make(chan *message.Message)
	u.passing.Go(func() {
		defer close(out)
		came := make(map[string]bool)
		for m := range in {
			if came[m.UUID] = true; len(came) == last {
				<-time.After(5 * time.Second)
			}
			select {
			case out <- m:
			case <-m.Context().Done():
			}
		}
	})
	return out, nil
}

func open(t *testing.T, s *mysqltest.Server) *notify.DB {
	t.Helper()
	db, err := notify.OpenConfig(s.Database(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, schema.Init(t.Context(), db.Pool()))
	return db
}

// The adapter passes all 16 of Watermill's tests. TestReconnect runs only without -race. The long form has as many messages and
// subscribers as the tests have by default.
func TestPubSub(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		features, constructor, groups := suite(t, s, form{})
		tests.TestPubSub(t, features, constructor, groups)
	})
}

// The adapter also passes them if every subscriber is in a group, if the members of each group share its messages, and if
// messages are published and handled in transactions. With -race two of these four forms run, at random.
func TestPubSubInGroups(t *testing.T) {
	forms := []form{
		{group: "all"}, {group: "all", share: true}, {group: "all", transaction: true}, {group: "all", share: true, transaction: true},
	}
	mysqltest.Random(t).Shuffle(len(forms), func(i, j int) { forms[i], forms[j] = forms[j], forms[i] })
	mysqltest.EachCase(t, forms[:mysqltest.Many(2, 4, 4)], func(t *testing.T, s *mysqltest.Server, form form) {
		features, constructor, groups := suite(t, s, form)
		tests.TestPubSub(t, features, constructor, groups)
	})
}

// The adapter passes all tests but TestReconnect several times at once.
func TestPubSubStress(t *testing.T) {
	if !mysqltest.Long() {
		t.Skip("takes minutes, because the suite runs several times at once: it runs with ./test --long")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		features, constructor, groups := suite(t, s, form{})
		features.RestartServiceCommand = nil // a restart would disturb the other tests
		tests.TestPubSubStressTest(t, features, constructor, groups)
	})
}

// Metadata, UUID and any bytes arrive. A row of a program that does not use this adapter is a message too, with the same UUID at
// each delivery.
func TestMessages(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, nil)
		require.NoError(t, err)
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{NackResendSleep: -1}, watermill.NopLogger{})
		require.NoError(t, err)
		defer func() {
			require.NoError(t, publisher.Close())
			require.NoError(t, subscriber.Close())
			require.ErrorIs(t, publisher.Publish("orders", message.NewMessage("1", nil)), notify.ErrClosed)
			_, err := subscriber.Subscribe(t.Context(), "orders")
			require.ErrorIs(t, err, notify.ErrClosed)
		}()
		sent := message.NewMessage(watermill.NewUUID(), []byte{0, 0xff, '\''})
		sent.Metadata.Set("ключ", "значение")
		require.NoError(t, publisher.Publish("orders", sent, message.NewMessage("second", nil)))
		_, err = db.Pool().Exec("INSERT INTO orders (payload) VALUES ('third')")
		require.NoError(t, err)

		messages, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		next := func() *message.Message {
			t.Helper()
			select {
			case m := <-messages:
				require.NotNil(t, m)
				return m
			case <-time.After(patience):
				t.Fatal("no message arrived")
				return nil
			}
		}
		for range 2 { // a refused message is delivered again
			first := next()
			require.True(t, sent.Equals(first), "%+v", first)
			first.Nack()
			<-first.Context().Done()
		}
		next().Ack()
		second := next()
		require.Equal(t, "second", second.UUID)
		require.Empty(t, second.Payload)
		second.Ack()
		for range 2 {
			third := next()
			require.Equal(t, "orders-3", third.UUID)
			require.Equal(t, "third", string(third.Payload))
			third.Nack()
		}
		next().Ack()
	})
}

// All subscriptions of a shared group get messages, those of each key in order. A refused message is delivered again.
func TestMembersShare(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, nil)
		require.NoError(t, err)
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{
			ConsumerGroup: "g", InitializeSchema: true, Consumer: consumer.Options{MembersShare: true},
		}, nil)
		require.NoError(t, err)
		var mu sync.Mutex
		refused, done, order, counts := map[string]bool{}, map[string]bool{}, map[string][]int{}, [2]int{}
		var subscriptions sync.WaitGroup
		for i := range counts {
			messages, err := subscriber.Subscribe(t.Context(), "orders")
			require.NoError(t, err)
			subscriptions.Go(func() {
				for m := range messages {
					mu.Lock()
					switch {
					case !refused[m.UUID]:
						refused[m.UUID] = true
						m.Nack()
					default:
						if n, _ := strconv.Atoi(m.UUID); !done[m.UUID] {
							order[m.Metadata.Get("key")] = append(order[m.Metadata.Get("key")], n)
						}
						done[m.UUID] = true
						counts[i]++
						m.Ack()
					}
					mu.Unlock()
				}
			})
		}
		published := 0
		require.Eventually(t, func() bool { // until both subscriptions have messages
			for range 20 {
				m := message.NewMessage(strconv.Itoa(published), nil)
				m.Metadata.Set("key", strconv.Itoa(published%20))
				assert.NoError(t, publisher.Publish("orders", m))
				published++
			}
			mu.Lock()
			defer mu.Unlock()
			return counts[0] > 0 && counts[1] > 0
		}, patience, 50*time.Millisecond)
		require.Eventually(t, func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(done) == published
		}, patience, 25*time.Millisecond)
		require.NoError(t, publisher.Close())
		require.NoError(t, subscriber.Close())
		subscriptions.Wait()
		for key, numbers := range order {
			require.True(t, slices.IsSorted(numbers), "key %s: %v", key, numbers)
		}
	})
}

// A message that is not acknowledged within AckDeadline is delivered again.
func TestAckDeadline(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := open(t, s)
		publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, publisher.Close()) }()
		subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{
			ConsumerGroup: "g", AckDeadline: 50 * time.Millisecond, From: "end", InitializeSchema: true,
		}, nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, subscriber.Close()) }()
		require.NoError(t, subscriber.SubscribeInitialize("orders"))
		require.NoError(t, publisher.Publish("orders", message.NewMessage("before", nil)))
		messages, err := subscriber.Subscribe(t.Context(), "orders")
		require.NoError(t, err)
		require.Eventually(t, func() bool { // the group has started, at the end
			var n int
			return db.Pool().Get(&n, "SELECT COUNT(*) FROM mqnotify_offset") == nil && n == 1
		}, patience, 25*time.Millisecond)
		require.NoError(t, publisher.Publish("orders", message.NewMessage("held", nil)))
		first := <-messages
		<-first.Context().Done()
		again := <-messages
		require.Equal(t, "held", first.UUID)
		require.Equal(t, "held", again.UUID)
		again.Ack()
	})
}

func TestWrong(t *testing.T) {
	_, err := adapter.NewPublisher(nil, adapter.PublisherConfig{}, nil)
	require.Error(t, err)
	_, err = adapter.NewSubscriber(nil, adapter.SubscriberConfig{}, nil)
	require.Error(t, err)
	db, err := notify.Open("user:password@tcp(127.0.0.1:1)/none")
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	_, err = adapter.NewPublisher(db, adapter.PublisherConfig{Producer: producer.Options{Mode: "handshake"}}, nil)
	require.ErrorIs(t, err, notify.ErrOptions)
}
