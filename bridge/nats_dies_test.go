package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// dying kills the broker when the sink fetches from a consumer of either kind.
type dying struct {
	jetstream.JetStream
	kill func()
}

func (d dying) CreateConsumer(ctx context.Context, stream string, config jetstream.ConsumerConfig) (jetstream.Consumer, error) {
	c, err := d.JetStream.CreateConsumer(ctx, stream, config)
	return dyingConsumer{c, d.kill}, err
}

func (d dying) OrderedConsumer(ctx context.Context, stream string, config jetstream.OrderedConsumerConfig) (jetstream.Consumer, error) {
	c, err := d.JetStream.OrderedConsumer(ctx, stream, config)
	return dyingConsumer{c, d.kill}, err
}

type dyingConsumer struct {
	jetstream.Consumer
	kill func()
}

func (d dyingConsumer) Fetch(most int, options ...jetstream.FetchOpt) (jetstream.MessageBatch, error) {
	d.kill()
	return d.Consumer.Fetch(most, options...)
}

// If the broker dies while the sink reads the end of the stream, Send returns an error, and another sink continues later.
func TestNATSDiesDuringTheFirstRead(t *testing.T) {
	mysqltest.Once(t)
	b := brokertest.NATS(t)
	to := natsTarget(b, "")
	send(t, to.open(t, "t"), messages("t", 1, 5), 5)
	sink := to.open(t, "t")
	s, ok := sink.(*natsSink)
	require.True(t, ok)
	s.js = dying{s.js, b.Kill}
	ended := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Second)
		defer cancel()
		_, err := s.Send(ctx, messages("t", 1, 5))
		ended <- err
	}()
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(patience):
		require.Fail(t, "Send never ends")
	}
	b.Restart()
	send(t, to.open(t, "t"), messages("t", 1, 6), 6)
	require.Equal(t, wanted(messages("t", 1, 6)), readStream(t, b, "t"))
}
