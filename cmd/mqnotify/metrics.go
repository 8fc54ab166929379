package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/notify"
)

// registerMetrics adds --metrics to a command that runs until it is stopped.
func (a *app) registerMetrics(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.metrics, "metrics", "", "serve /metrics (Prometheus) and /healthz over HTTP on this `address`, such as\n127.0.0.1:9090; default none")
}

// measured has the metrics of a command.
type measured struct {
	registry *prometheus.Registry
	readers  *metrics.Readers
	stop     func()
}

// measure creates the metrics of a command that uses db, and serves them if --metrics is given. The caller calls stop at the end
// of the command.
func (a *app) measure(ctx context.Context, db *notify.DB) (*measured, error) {
	m := &measured{registry: metrics.NewRegistry(a.commands)}
	m.readers, m.stop = metrics.NewReaders(m.registry), func() {}
	if a.metrics == "" {
		return m, nil
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", a.metrics)
	if err != nil {
		return nil, fmt.Errorf("--metrics: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", metrics.Health)
	mux.Handle("GET /metrics", metrics.Handler(m.registry))
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		ErrorLog: slog.NewLogLogger(a.log.Handler(), slog.LevelDebug),
	}
	// The metrics are served after Ctrl-C too, while the command finishes.
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var running sync.WaitGroup
	running.Go(func() { m.readers.Clock.Run(ctx, db) })
	running.Go(func() { _ = server.Serve(listener) }) // until stop
	m.stop = func() {
		cancel()
		_ = server.Close() // it does not wait for a scrape in progress
		running.Wait()
	}
	a.log.InfoContext(ctx, "metrics", "url", "http://"+listener.Addr().String()+"/metrics")
	return m, nil
}

// count registers a counter for each outcome, with another label.
func (m *measured) count(name, help, label, value string, outcomes map[string]*atomic.Uint64) {
	for outcome, count := range outcomes {
		labels := prometheus.Labels{label: value, "outcome": outcome}
		m.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{Name: name, Help: help, ConstLabels: labels},
			func() float64 { return float64(count.Load()) }))
	}
}

// groups registers the metrics of a topic's groups and its largest id.
func (m *measured) groups(db *notify.DB, topic, key string) error {
	c, err := consumer.New(db, topic, consumer.Options{Key: key})
	if err == nil {
		m.registry.MustRegister(&groupCollector{consumer: c, topic: topic})
	}
	return err
}

// groupCollector collects the metrics of a topic's groups. It asks the database at most every 2 s.
type groupCollector struct {
	consumer *consumer.Consumer // of every group
	topic    string
	mu       sync.Mutex
	asked    time.Time
	status   *consumer.Status // nil if the last query failed
}

func (c *groupCollector) Describe(to chan<- *prometheus.Desc) { metrics.DescribeGroups(to) }

func (c *groupCollector) Collect(to chan<- prometheus.Metric) {
	const patience = 2 * time.Second // scrapes time out soon after
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.asked) > patience {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		c.status, _ = c.consumer.Status(ctx) // after an error the scrape has no metrics of groups
		c.asked = time.Now()
	}
	if c.status != nil {
		metrics.CollectGroups(to, c.topic, c.status)
	}
}
