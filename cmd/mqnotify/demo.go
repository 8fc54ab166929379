package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/demo"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
	schema "github.com/mqnotify/mqnotify/sql"
)

// demoOptions are demo's flags.
type demoOptions struct {
	count    int
	interval time.Duration
}

func newDemo(a *app) *cobra.Command {
	var o demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "See messages go from a producer to a consumer, without a server",
		Long: `Starts a MySQL-compatible engine inside this process, and the real producer and
consumer, which talk to it over TCP: the consumer sleeps in the engine, and the producer
wakes it. Each message is a line, with the time from before it was published until the
consumer had it. It ends by itself.

The engine is for trying only. Its data is in memory, and its transactions run one at
a time here, since by themselves they lose rows under concurrency: it shows nothing of
how a server behaves under load. For anything else, take a MySQL or MariaDB server.`,
		Example: `  mqnotify demo
  mqnotify demo --count 1000 --interval 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.count < 1 {
				return usagef("--count %d: 1 or more", o.count)
			}
			return a.demo(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVar(&o.count, "count", 20, "how many messages")
	cmd.Flags().DurationVar(&o.interval, "interval", 50*time.Millisecond, "time between two messages")
	completeNothing(cmd, "count", "interval")
	return cmd
}

const (
	demoTopic  = "demo_messages"
	headerSent = "sent"
)

func (a *app) demo(ctx context.Context, o demoOptions) (err error) {
	engine, err := demo.Start(ctx)
	if errors.Is(err, demo.ErrNotBuiltIn) {
		return fmt.Errorf("this build has no demo: %w", err)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, engine.Close()) }()
	config := engine.Config()
	config.Logger = driverLog{a.log}
	// Two, as two processes have: in one the producer would not need the engine to wake the consumer.
	consuming, err := notify.OpenConfig(config)
	if err != nil {
		return err
	}
	defer closeDB(consuming)
	producing, err := notify.OpenConfig(config)
	if err != nil {
		return err
	}
	defer closeDB(producing)
	if err := schema.Init(ctx, producing.Pool(), demoTopic); err != nil {
		return err
	}
	a.note("An embedded MySQL-compatible engine listens on %s; a producer and a consumer work on it.\n"+
		"For trying only: it forgets everything, and its transactions run one at a time, or they would lose rows.\n\n", config.Addr)
	latencies, err := a.demoMessages(ctx, consuming, producing, o)
	if n := len(latencies); n > 0 {
		slices.Sort(latencies)
		a.note("\n%d messages, publish to handler: median %s, worst %s.\n"+
			"Next, on a server of yours: mqnotify init, produce and consume (mqnotify --help).\n",
			n, milliseconds(latencies[n/2]), milliseconds(latencies[n-1]))
	}
	return ignoreBrokenPipe(err)
}

// demoMessages runs producer and consumer until all messages are there.
func (a *app) demoMessages(ctx context.Context, consuming, producing *notify.DB, o demoOptions) (latencies []time.Duration, err error) {
	// What is to be seen is the messages.
	quiet, err := (&logging{format: a.logging.format, level: "warn"}).logger(a.stderr)
	if err != nil {
		return nil, err
	}
	c, err := consumer.New(consuming, demoTopic, consumer.Options{
		Group: "demo", From: consumer.Beginning(), Logger: quiet, MaxAttempts: -1, Limit: o.count,
		Writers: consumer.WritersUnknown, Grace: time.Second, // the engine can't show its transactions
	})
	if err != nil {
		return nil, err
	}
	p, err := producer.New(producing, demoTopic, producer.Options{Logger: quiet})
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Close() }() // it fails at nothing that matters any more
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if err := c.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
			latency := sinceSent(m)
			latencies = append(latencies, latency)
			err := writeAll(a.out, fmt.Sprintf("%4d  %s  %10s  %s\n",
				m.ID, m.CreatedAt.Format("15:04:05.000"), milliseconds(latency), m.Payload))
			if err != nil {
				cancel(err)
			}
			return err
		})); err != nil {
			cancel(err)
		}
		cancel(nil)
	}()
	err = demoPublish(ctx, p, o)
	if err != nil {
		cancel(err)
	}
	<-ended
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return latencies, cause
	}
	return latencies, err
}

// demoPublish publishes the messages one after the other.
func demoPublish(ctx context.Context, p *producer.Producer, o demoOptions) error {
	for n := range o.count {
		_, err := p.Publish(ctx, producer.Message{
			Headers: map[string]string{headerSent: strconv.FormatInt(time.Now().UnixNano(), 10)},
			Payload: fmt.Appendf(nil, "message %d of %d", n+1, o.count),
		})
		if ctx.Err() != nil {
			return nil //nolint:nilerr // stopped in the middle of a publish
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(o.interval):
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
