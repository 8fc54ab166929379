package bridge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/brokertest"
)

// A broker that is frozen while it is opened holds nobody up: the context's end ends that.
func TestOpenFrozen(t *testing.T) {
	for name, b := range map[string]*brokertest.Broker{
		"NATS": brokertest.NATS(t), "Redis": brokertest.Redis(t), "RabbitMQ": brokertest.RabbitMQ(t), "Mosquitto": brokertest.Mosquitto(t),
	} {
		t.Run(name, func(t *testing.T) {
			defer b.Freeze()()
			d, err := Parse(b.URL(""), "orders")
			require.NoError(t, err)
			ctx, cancel := context.WithCancelCause(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := d.Open(ctx)
				ended <- err
			}()
			pause(t.Context(), 200*time.Millisecond) // until it hangs, most likely
			cancel(errors.New("the end"))
			select {
			case err := <-ended:
				requireTransient(t, err)
			case <-time.After(patience):
				t.Fatal("Open does not end with its context")
			}
		})
	}
}

// Send heeds its context where the destination says nothing, and where it reads nothing either, and Close
// does not wait for it; what was not confirmed comes again.
func (to target) testFrozen(t *testing.T) {
	if to.freeze == nil {
		t.Skip("it can't freeze")
	}
	const topic = "frozen"
	all := messages(topic, 1, 100)
	for i := range all[30:80] { // more than a socket holds
		all[30+i].Payload = bytes.Repeat([]byte("x"), cmp.Or(to.held, 250_000))
	}
	send(t, to.open(t, topic), all[:10], 10)
	for _, page := range [][]consumer.Message{all[10:30], all[30:]} {
		sink := to.open(t, topic)
		send(t, sink, page[:1], 1)
		thaw := sync.OnceFunc(to.freeze(topic))
		defer thaw()
		ctx, cancel := context.WithCancelCause(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			n, err := sink.Send(ctx, page[1:])
			if err == nil || n == len(page)-1 {
				t.Error("it is confirmed")
			}
			if err := sink.Close(); err != nil {
				t.Error(err)
			}
		}()
		pause(t.Context(), 200*time.Millisecond) // until it hangs, most likely
		cancel(errors.New("the end"))
		select {
		case <-ended:
		case <-time.After(patience):
			t.Error("Send does not end with its context, or Close does not")
			thaw()
			<-ended
		}
		thaw()
		send(t, to.open(t, topic), page[1:], 20)
	}
	want, got := wanted(all), to.read(t, topic)
	if !to.dedupes {
		got = once(got)
	}
	require.Len(t, got, len(want))
	for i := range want {
		require.Equal(t, want[i].id, got[i].id)
		if want[i] != got[i] { // which is too long to be printed
			t.Fatalf("%s is another", want[i].id)
		}
	}
}
