// Package metrics is what the long-running commands tell Prometheus and health checks.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mqnotify/mqnotify/consumer"
)

// NewRegistry returns a registry with what every process tells: statements that were sent to the database, as
// commands counts them, and the metrics of Go and of the process.
func NewRegistry(commands func() uint64) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "mqnotify_statements_total", Help: "Statements, and other commands of the protocol, that were sent to the database: a packet of several is one. 0 where nobody counts them."},
			func() float64 { return float64(commands()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Handler answers GET /metrics.
func Handler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Health answers GET /healthz: the process lives.
func Health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n")) // a client that is gone needs no answer
}

// NewCounter returns a counter of a topic.
func NewCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mqnotify_" + name, Help: help}, append([]string{"topic"}, labels...))
}

// Readers is the metrics of a process's readers. The caller runs the Clock.
type Readers struct {
	Clock   Clock
	latency *prometheus.HistogramVec
	read    *prometheus.CounterVec
	wakes   *prometheus.CounterVec
}

// NewReaders returns the metrics of readers, registered.
func NewReaders(registry *prometheus.Registry) *Readers {
	r := &Readers{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mqnotify_latency_seconds",
			Help: "From a message's insertion, by the database's clock, to its being handed to clients. A transaction that stays open counts.",
			// From a fraction of a round trip to the longest wait between two polls, and more.
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 60},
		}, []string{"topic"}),
		read:  NewCounter("messages_read_total", "Messages that were read from the topic."),
		wakes: NewCounter("wakes_total", "Times that the reader came back from waiting, by what ended the wait.", "kind"),
	}
	registry.MustRegister(r.latency, r.read, r.wakes)
	return r
}

// Reader is the metrics of one topic's reader.
type Reader struct {
	clock   *Clock
	latency prometheus.Observer
	read    prometheus.Counter
	wakes   *prometheus.CounterVec
}

// Topic returns the metrics of a topic's reader.
func (r *Readers) Topic(name string) *Reader {
	return &Reader{&r.Clock, r.latency.WithLabelValues(name), r.read.WithLabelValues(name), r.wakes.MustCurryWith(prometheus.Labels{"topic": name})}
}

// Delivered notes messages that are handed out now.
func (r *Reader) Delivered(messages []consumer.Message, now time.Time) {
	r.read.Add(float64(len(messages)))
	ahead, known := r.clock.Ahead()
	for i := range messages {
		// What was there before the process was is no measure of anything.
		if created := messages[i].CreatedAt; known && !created.IsZero() && created.Add(-ahead).After(r.clock.since) {
			r.latency.Observe(max(0, now.Sub(created.Add(-ahead)).Seconds()))
		}
	}
}

// Woken counts what ends the reader's waits.
func (r *Reader) Woken(by string) { r.wakes.WithLabelValues(by).Inc() }
