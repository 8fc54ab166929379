package gocloud

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"gocloud.dev/gcerrors"
	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/driver"
	"gocloud.dev/pubsub/drivertest"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

func TestMain(m *testing.M) {
	// The Go CDK's goroutine that prefetches sends its result to the receiving goroutine, and stays if that has ended first.
	mysqltest.Main(m, goleak.IgnoreAnyFunction("gocloud.dev/pubsub.(*Subscription).Receive.func2"))
}

func database(t *testing.T, s *mysqltest.Server) *notify.DB {
	t.Helper()
	db, _ := databaseURL(t, s)
	return db
}

// databaseURL makes a database with mqnotify's tables and returns its URL.
func databaseURL(t *testing.T, s *mysqltest.Server) (db *notify.DB, url string) {
	t.Helper()
	config := s.Database(t)
	db, err := notify.OpenConfig(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	require.NoError(t, schema.Init(t.Context(), db.Pool()))
	return db, fmt.Sprintf("mysql://%s:%s@%s/%s", config.User, config.Passwd, config.Addr, config.DBName)
}

// harness is the driver for the conformance tests.
type harness struct {
	db   *notify.DB
	made *atomic.Int64
}

func (h harness) CreateTopic(ctx context.Context, _ string) (driver.Topic, func(), error) {
	name := fmt.Sprint("topic", h.made.Add(1))
	t := &topic{db: h.db, name: name, queues: make(map[string]*queue.Queue)}
	return t, func() { _ = t.Close() }, CreateTopic(ctx, h.db, name)
}

func (h harness) MakeNonexistentTopic(context.Context) (driver.Topic, error) {
	return &topic{db: h.db, name: "nowhere", queues: make(map[string]*queue.Queue)}, nil
}

func (h harness) CreateSubscription(ctx context.Context, of driver.Topic, _ string) (driver.Subscription, func(), error) {
	name := fmt.Sprint("subscription", h.made.Add(1))
	t := of.(*topic).name
	s := newSubscription(h.db, t, name, SubscriptionOptions{})
	return s, func() { _ = s.Close() }, CreateSubscription(ctx, h.db, t, name)
}

func (h harness) MakeNonexistentSubscription(context.Context) (driver.Subscription, func(), error) {
	s := newSubscription(h.db, "nowhere", "nobody", SubscriptionOptions{})
	return s, func() { _ = s.Close() }, nil
}

func (harness) Close()                              {}
func (harness) MaxBatchSizes() (int, int)           { return 0, 0 }
func (harness) SupportsMultipleSubscriptions() bool { return true }

// The driver passes all of the Go CDK's conformance tests.
func TestConformance(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := database(t, s)
		made := new(atomic.Int64)
		drivertest.RunConformanceTests(t, func(context.Context, *testing.T) (drivertest.Harness, error) {
			return harness{db, made}, nil
		}, []drivertest.AsTest{asTest{}})
	})
}

// asTest checks what As returns.
type asTest struct{}

func (asTest) Name() string { return "database and task" }

func (asTest) TopicCheck(t *pubsub.Topic) error {
	var db *notify.DB
	if !t.As(&db) || db == nil {
		return fmt.Errorf("no *notify.DB")
	}
	return nil
}

func (asTest) SubscriptionCheck(s *pubsub.Subscription) error {
	var db *notify.DB
	if !s.As(&db) || db == nil {
		return fmt.Errorf("no *notify.DB")
	}
	return nil
}

func (asTest) TopicErrorCheck(_ *pubsub.Topic, err error) error { return isNotFound(err) }

func (asTest) SubscriptionErrorCheck(_ *pubsub.Subscription, err error) error { return isNotFound(err) }

func isNotFound(err error) error {
	if gcerrors.Code(err) != gcerrors.NotFound {
		return fmt.Errorf("not NotFound: %w", err)
	}
	return nil
}

func (asTest) MessageCheck(m *pubsub.Message) error {
	var task queue.Task
	if !m.As(&task) || task.ID == 0 {
		return fmt.Errorf("no queue.Task")
	}
	return nil
}

func (asTest) BeforeSend(func(any) bool) error { return nil }
func (asTest) AfterSend(func(any) bool) error  { return nil }

// The URL of a subscription sets the number of messages that it takes at a time, and for how long.
func TestURLOptions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, server := databaseURL(t, s)
		require.NoError(t, CreateTopic(t.Context(), db, "orders"))
		require.NoError(t, CreateSubscription(t.Context(), db, "orders", "mailer"))
		topic := OpenTopic(db, "orders")
		defer func() { require.NoError(t, topic.Shutdown(context.WithoutCancel(t.Context()))) }()
		for range 2 {
			require.NoError(t, topic.Send(t.Context(), &pubsub.Message{Body: []byte("x")}))
		}
		sub, err := pubsub.OpenSubscription(t.Context(), server+"?topic=orders&subscription=mailer&visibility=1h&in_flight=1")
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Shutdown(context.WithoutCancel(t.Context()))) }()
		for left := 1; left >= 0; left-- {
			got, err := sub.Receive(t.Context())
			require.NoError(t, err)
			require.Equal(t, fmt.Sprint("1 ", left), mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT("+
				"SUM(state = 'in progress' AND state_at > UTC_TIMESTAMP() + INTERVAL 50 MINUTE), ' ', SUM(state = 'ready')) FROM mqnotify_task"))
			got.Ack()
		}
	})
}

// A refused message is logged only at the debug level.
func TestNackIsNotLogged(t *testing.T) {
	mysqltest.EachCase(t, []slog.Level{slog.LevelInfo, slog.LevelDebug}, func(t *testing.T, s *mysqltest.Server, level slog.Level) {
		db := database(t, s)
		require.NoError(t, CreateTopic(t.Context(), db, "orders"))
		require.NoError(t, CreateSubscription(t.Context(), db, "orders", "mailer"))
		var logged mysqltest.Text
		sub := OpenSubscription(db, "orders", "mailer", SubscriptionOptions{Logger: slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: level}))})
		topic := OpenTopic(db, "orders")
		require.NoError(t, topic.Send(t.Context(), &pubsub.Message{Body: []byte("x")}))
		for range 3 {
			m, err := sub.Receive(t.Context())
			require.NoError(t, err)
			m.Nack()
		}
		m, err := sub.Receive(t.Context())
		require.NoError(t, err)
		m.Ack()
		require.NoError(t, topic.Shutdown(t.Context()))
		require.NoError(t, sub.Shutdown(t.Context()))
		require.Equal(t, level == slog.LevelDebug, strings.Contains(logged.String(), "a task failed"), logged.String())
	})
}

// Topics and subscriptions opened by URL carry metadata and any bytes.
func TestURLs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, server := databaseURL(t, s)
		require.NoError(t, CreateTopic(t.Context(), db, "orders"))
		require.NoError(t, CreateSubscription(t.Context(), db, "orders", "mailer"))
		url := server + "?topic=orders"
		topic, err := pubsub.OpenTopic(t.Context(), url)
		require.NoError(t, err)
		defer func() { require.NoError(t, topic.Shutdown(context.WithoutCancel(t.Context()))) }()
		sub, err := pubsub.OpenSubscription(t.Context(), url+"&subscription=mailer")
		require.NoError(t, err)
		defer func() { require.NoError(t, sub.Shutdown(context.WithoutCancel(t.Context()))) }()
		for _, sent := range []*pubsub.Message{
			{Body: []byte{0, 0xff}, Metadata: map[string]string{"ключ": "значение\n"}},
			{Body: []byte(magic + "{}\nnot metadata")},
			{Body: nil},
		} {
			require.NoError(t, topic.Send(t.Context(), &pubsub.Message{Body: sent.Body, Metadata: sent.Metadata}))
			got, err := sub.Receive(t.Context())
			require.NoError(t, err)
			require.Equal(t, string(sent.Body), string(got.Body))
			require.Len(t, got.Metadata, len(sent.Metadata))
			require.Equal(t, sent.Metadata["ключ"], got.Metadata["ключ"])
			got.Ack()
		}
		for _, wrong := range []string{"mysql://root@127.0.0.1/shop", "mysql://root@127.0.0.1/shop?topic=t&subscription=s"} {
			_, err := pubsub.OpenTopic(t.Context(), wrong)
			require.Error(t, err)
		}
		_, err = pubsub.OpenSubscription(t.Context(), url)
		require.Error(t, err)
		for _, wrong := range []string{"visibility=long", "in_flight=0", "in_flight=many"} {
			_, err = pubsub.OpenSubscription(t.Context(), url+"&subscription=mailer&"+wrong)
			require.ErrorIs(t, err, notify.ErrOptions, wrong)
		}
		_, err = pubsub.OpenTopic(t.Context(), url+"&visibility=1m")
		require.ErrorIs(t, err, notify.ErrOptions)
		require.Error(t, CreateTopic(t.Context(), db, "a/b"))
		require.ErrorIs(t, CreateSubscription(t.Context(), db, "nowhere", "s"), queue.ErrNotFound)
		require.ErrorIs(t, CreateSubscription(t.Context(), db, "orders", ""), notify.ErrOptions)
	})
}
