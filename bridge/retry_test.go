package bridge

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A row whose dead letter is retried is sent. If it is refused again, also for good, its dead letter stays, with the new
// error, and the bridge goes on.
func TestRetryOfARow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE stock (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO stock VALUES (), (), ()")
		var why atomic.Pointer[error]
		refuse := func(err error) { why.Store(&err) }
		refuse(&PoisonError{3, errors.New("first")})
		f := &fake{fail: func(m consumer.Message) error {
			if m.ID == 3 {
				return *why.Load()
			}
			return nil
		}}
		runOn(t, db, "stock", f.destination(), Options{MaxAttempts: 2})
		c, err := consumer.New(db, "stock", consumer.Options{Group: "g"})
		require.NoError(t, err)
		letter := func() string {
			return mysqltest.Value[string](t, db.Pool(), "SELECT COALESCE(MAX(error), '') FROM mqnotify_dead_letter WHERE topic = 'stock'")
		}
		retry := func() {
			messages, gone, err := c.RetryDead(t.Context(), consumer.DeadFilter{})
			require.NoError(t, err)
			require.Equal(t, []uint64{3}, messages)
			require.Empty(t, gone)
		}
		mysqltest.Eventually(t, "the row is a dead letter", func() bool { return letter() == "message 3 is refused: first" })
		refuse(&PoisonError{3, errors.New("second")})
		retry()
		mysqltest.Eventually(t, "the dead letter has the new error", func() bool { return strings.HasSuffix(letter(), "message 3 is refused: second") })
		refuse(&PermanentError{errors.New("third")})
		retry()
		mysqltest.Eventually(t, "the dead letter has the last error", func() bool { return strings.HasSuffix(letter(), "third") })
		require.Equal(t, []uint64{1, 2}, f.ids())
		refuse(nil)
		retry()
		mysqltest.Eventually(t, "the dead letter is gone", func() bool { return letter() == "" })
		require.Equal(t, []uint64{1, 2, 3}, f.ids())
	})
}

// A limit of the waits counts from a failure, not from the last success.
func TestRetryAfterQuietTime(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		t.Run("bridge", func(t *testing.T) {
			var clock mysqltest.Clock
			var failures atomic.Int32
			f := &fake{fail: func(consumer.Message) error {
				if failures.Add(-1) >= 0 {
					return errors.New("away")
				}
				return nil
			}}
			db := openTopic(t, s)
			run(t, db, f.destination(), Options{Retry: minute(&clock)})
			for id := range 3 {
				insert(t, db, id, id)
				mysqltest.Eventually(t, "the row is sent", func() bool { return len(f.ids()) == id+1 })
				clock.Forward(time.Hour)
				failures.Store(2)
			}
		})
		t.Run("import", func(t *testing.T) {
			var clock mysqltest.Clock
			db := openTopic(t, s)
			broken := make(chan error)
			opens := make(chan struct{}, 10)
			from := &origin{Name: "x", Key: "x", Open: func(context.Context) (messageSource, error) {
				opens <- struct{}{}
				return quiet{broken: broken}, nil
			}}
			i, err := newImport(db, from, "orders", ImportOptions{Retry: minute(&clock), Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			ctx, stop := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- i.Run(ctx) }()
			for range 3 {
				mysqltest.Receive(t, opens)
				broken <- nil
				clock.Forward(time.Hour)
				broken <- errors.New("away")
			}
			mysqltest.Receive(t, opens)
			stop()
			require.NoError(t, mysqltest.Receive(t, done))
		})
	})
}

// minute returns short waits that give up a minute of the clock after their start.
func minute(clock *mysqltest.Clock) func() backoff.BackOff {
	return func() backoff.BackOff {
		return backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxElapsedTime(time.Minute), backoff.WithClockProvider(clock))
	}
}

// quiet is a source without messages. Receive returns what comes: an error, or nil for no message.
type quiet struct {
	given
	broken chan error
}

func (q quiet) Receive(ctx context.Context, _ int) ([]received, error) {
	select {
	case err := <-q.broken:
		return nil, err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// A message whose headers the broker's protocol can't carry is refused, alone. RabbitMQ has this test as a part of TestAMQP.
func TestHugeHeaders(t *testing.T) {
	mysqltest.Once(t)
	testHugeHeaders(t, brokertest.Mosquitto(t), 70_000)
}

func testHugeHeaders(t *testing.T, b *brokertest.Broker, size int) {
	d, err := Parse(b.URL(""), "huge")
	require.NoError(t, err)
	sink, err := d.Open(t.Context())
	require.NoError(t, err)
	defer func() { require.NoError(t, sink.Close()) }()
	huge := consumer.Message{Topic: "huge", ID: 2, Headers: map[string]string{"note": strings.Repeat("x", size)}}
	n, err := sink.Send(t.Context(), []consumer.Message{{Topic: "huge", ID: 1}, huge})
	var refused *PoisonError
	require.ErrorAs(t, err, &refused)
	require.Equal(t, uint64(2), refused.ID)
	require.Equal(t, 1, n)
}
