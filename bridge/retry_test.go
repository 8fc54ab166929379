package bridge

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

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

// A message whose headers the broker's protocol can't carry is refused, alone.
func TestHugeHeaders(t *testing.T) {
	mysqltest.Once(t)
	for name, c := range map[string]struct {
		start func(testing.TB) *brokertest.Broker
		size  int
	}{"mqtt": {brokertest.Mosquitto, 70_000}, "amqp": {brokertest.RabbitMQ, 200_000}} {
		t.Run(name, func(t *testing.T) {
			d, err := Parse(c.start(t).URL(""), "huge")
			require.NoError(t, err)
			sink, err := d.Open(t.Context())
			require.NoError(t, err)
			defer func() { require.NoError(t, sink.Close()) }()
			huge := consumer.Message{Topic: "huge", ID: 2, Headers: map[string]string{"note": strings.Repeat("x", c.size)}}
			n, err := sink.Send(t.Context(), []consumer.Message{{Topic: "huge", ID: 1}, huge})
			var refused *PoisonError
			require.ErrorAs(t, err, &refused)
			require.Equal(t, uint64(2), refused.ID)
			require.Equal(t, 1, n)
		})
	}
}
