package bridge

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// If a stream has no room for one row but takes the next, and both are under way, it may store them in the wrong order. With one
// message under way at a time it can't.
func TestOrderAfterARefusal(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		b := brokertest.NATS(t)
		js := openJetStream(t, b)
		for inFlight, wanted := range map[int][]string{3: {"132", "123"}, 1: {"123"}} {
			_ = js.DeleteStream(t.Context(), "orders") // left by the iteration before
			config := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders"}, MaxBytes: 2000, Discard: jetstream.DiscardNew}
			_, err := js.CreateStream(t.Context(), config)
			require.NoError(t, err)
			db := openTopic(t, s)
			_, err = db.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('1'), (RPAD('2', 3000, 'x')), ('3')")
			require.NoError(t, err)
			to, err := Parse(b.URL(""), "orders")
			require.NoError(t, err)
			var logs mysqltest.Text
			r := run(t, db, to, Options{InFlight: inFlight, Consumer: consumer.Options{StopAtEnd: true}, Logger: slog.New(slog.NewTextHandler(&logs, nil))})
			require.Eventually(t, func() bool { return strings.Count(logs.String(), "not sent; trying again") > 2 }, patience, 25*time.Millisecond)
			config.MaxBytes = 100_000
			_, err = js.UpdateStream(t.Context(), config)
			require.NoError(t, err)
			require.NoError(t, r.wait(t))
			order := ""
			for _, m := range readStream(t, b, "orders") {
				order += m.payload[:1]
			}
			require.Contains(t, wanted, order, "in flight: %d", inFlight)
		}
	})
}
