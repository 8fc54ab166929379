package bridge

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Open returns when its context ends, even if the broker is frozen. TestAMQP tests this with RabbitMQ, which starts slowly.
func TestOpenFrozen(t *testing.T) {
	mysqltest.Once(t)
	for name, b := range map[string]*brokertest.Broker{
		"NATS": brokertest.NATS(t), "Redis": brokertest.Redis(t), "Mosquitto": brokertest.Mosquitto(t),
	} {
		t.Run(name, func(t *testing.T) { testOpenFrozen(t, b) })
	}
}

func testOpenFrozen(t *testing.T, b *brokertest.Broker) {
	t.Helper()
	defer b.Freeze()()
	d, err := Parse(b.URL(""), "orders")
	require.NoError(t, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := d.Open(ctx)
		ended <- err
	}()
	pause(t.Context(), 200*time.Millisecond) // until Open hangs, most likely
	cancel(errors.New("the end"))
	select {
	case err := <-ended:
		requireTransient(t, err)
	case <-time.After(patience):
		t.Fatal("Open does not return when its context ends")
	}
}
