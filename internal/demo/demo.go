// Package demo prints a line for each message on its way from a real producer to a real consumer. `mqnotify
// demo` runs it on the user's server, and `go run ./demo` on an engine inside its own process.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strconv"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// Options are the settings of a demo.
type Options struct {
	Topic    string        // a message table that nothing else uses
	Count    int           // how many messages
	Interval time.Duration // between two messages
	Out      io.Writer     // gets a line for each message; a write error ends the demo
	Logger   *slog.Logger
	Writers  string        // see [consumer.Options]; empty means what works on the server
	Grace    time.Duration // see [consumer.Options]
}

// Latencies are the times from just before a publish until the consumer had the message, in increasing order.
type Latencies []time.Duration

// String returns a sentence for the end of a demo.
func (l Latencies) String() string {
	if len(l) == 0 {
		return "no message"
	}
	median := (l[(len(l)-1)/2] + l[len(l)/2]) / 2
	return fmt.Sprintf("%d messages, publish to handler: median %s, worst %s", len(l), milliseconds(median), milliseconds(l[len(l)-1]))
}

const headerSent = "sent"

// Run runs the producer and the consumer until all messages are handled or ctx has ended, which is no error. It needs two
// DBs, as two processes have: with one DB, the producer would wake the consumer without the server.
func Run(ctx context.Context, consuming, producing *notify.DB, o Options) (latencies Latencies, err error) {
	c, err := consumer.New(consuming, o.Topic, consumer.Options{
		From: "beginning", Logger: o.Logger, MaxAttempts: -1, Limit: o.Count, Writers: o.Writers, Grace: o.Grace,
	})
	if err != nil {
		return nil, err
	}
	p, err := producer.New(producing, o.Topic, producer.Options{Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Close() }() // an error here no longer matters
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		cancel(c.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
			latency := sinceSent(m)
			latencies = append(latencies, latency)
			_, err := fmt.Fprintf(o.Out, "%4d  %s  %10s  %s\n", m.ID, m.CreatedAt.Format("15:04:05.000"), milliseconds(latency), m.Payload)
			if err != nil {
				cancel(err)
			}
			return err
		})))
	}()
	if err = publish(ctx, p, o); err != nil {
		cancel(err)
	}
	<-ended
	slices.Sort(latencies)
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return latencies, cause
	}
	return latencies, err
}

// publish publishes the messages one after the other.
func publish(ctx context.Context, p *producer.Producer, o Options) error {
	for n := range o.Count {
		_, err := p.Publish(ctx, producer.Message{
			Headers: map[string]string{headerSent: strconv.FormatInt(time.Now().UnixNano(), 10)},
			Payload: fmt.Appendf(nil, "message %d of %d", n+1, o.Count),
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // ctx ended during a publish
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(o.Interval):
		case <-ctx.Done():
			return nil
		}
	}
	return nil
}

func sinceSent(m consumer.Message) time.Duration {
	sent, err := strconv.ParseInt(m.Headers[headerSent], 10, 64)
	if err != nil {
		return 0
	}
	return time.Since(time.Unix(0, sent))
}

func milliseconds(d time.Duration) string {
	return fmt.Sprintf("%.2f ms", float64(d)/float64(time.Millisecond))
}
