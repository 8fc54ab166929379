//go:build unix

package brokertest

import (
	"context"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// Each broker starts, restarts on the same port after a stop and a kill, and is gone
// at the end.
func TestBrokers(t *testing.T) {
	mysqltest.Once(t)
	for name, begin := range map[string]func(testing.TB) *Broker{
		"nats": func(tb testing.TB) *Broker { return NATS(tb) }, "redis": func(tb testing.TB) *Broker { return Redis(tb) },
		"mosquitto": func(tb testing.TB) *Broker { return Mosquitto(tb) }, "mosquitto that saves": MosquittoSaving,
		"rabbitmq": func(tb testing.TB) *Broker { return RabbitMQ(tb) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if name == "rabbitmq" && !mysqltest.Long() {
				t.Skip("it starts slowly; bridge.TestAMQP stops, kills and restarts it as well")
			}
			var b *Broker
			t.Run("alive", func(t *testing.T) {
				b = begin(t)
				addr := b.Addr()
				b.Stop()
				b.Stop()
				requireGone(t, b)
				b.Restart()
				require.NoError(t, b.kind.ready(t.Context(), b))
				b.Kill()
				requireGone(t, b)
				b.Restart()
				require.NoError(t, b.kind.ready(t.Context(), b))
				require.Equal(t, addr, b.Addr())
			})
			if b == nil {
				t.Skip("no broker was started")
			}
			requireGone(t, b)
			require.NoDirExists(t, b.folder)
		})
	}
}

// A server that accepts a connection while a broker starts, and sends nothing, does not use up the broker's start
// time.
func TestSilence(t *testing.T) {
	mysqltest.Once(t)
	b := Redis(t)
	answers, asked := b.kind.ready, 0
	b.kind.ready = func(ctx context.Context, b *Broker) error {
		if asked++; asked == 1 {
			<-ctx.Done()
			return ctx.Err()
		}
		return answers(ctx, b)
	}
	b.Restart()
	require.Equal(t, 2, asked)
}

func requireGone(t *testing.T, b *Broker) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", b.Addr(), time.Second)
	if err == nil {
		_ = conn.Close()
	}
	require.Error(t, err)
}
