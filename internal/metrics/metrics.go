// Package metrics has the metrics and health checks of the long-running commands.
package metrics

import (
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mqnotify/mqnotify/consumer"
)

// NewRegistry returns a registry with the metrics of every process: the statements that were sent to the database, as
// commands counts them, and the metrics of Go and of the process.
func NewRegistry(commands func() uint64) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "mqnotify_statements_total", Help: "Statements, and other commands of the protocol, that were sent to the database; a packet of several counts once. 0 if they are not counted."},
			func() float64 { return float64(commands()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// Handler answers GET /metrics.
func Handler(registry *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(registry, promhttp.HandlerOpts{})
}

// Health answers GET /healthz while the process lives.
func Health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	_, _ = w.Write([]byte(`{"status":"ok"}` + "\n")) // an error means that the client is gone
}

// NewCounter returns a counter of a topic.
func NewCounter(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mqnotify_" + name, Help: help}, append([]string{"topic"}, labels...))
}

// Readers are the metrics of a process's readers. The caller must run the Clock.
type Readers struct {
	Clock   Clock
	latency *prometheus.HistogramVec
	read    *prometheus.CounterVec
	wakes   *prometheus.CounterVec
}

// NewReaders registers and returns the metrics of readers.
func NewReaders(registry *prometheus.Registry) *Readers {
	r := &Readers{
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mqnotify_latency_seconds",
			Help: "Time from a message's insertion, by the database's clock, until it was handed to clients, including the time that its transaction stayed open.",
			// The buckets reach from a fraction of a round trip to more than the longest wait between two polls.
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 60},
		}, []string{"topic"}),
		read:  NewCounter("messages_read_total", "Messages that were read from the topic."),
		wakes: NewCounter("wakes_total", "Waits of the reader that have ended, by cause.", "kind"),
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

// Delivered records messages that are handed out now.
func (r *Reader) Delivered(messages []consumer.Message, now time.Time) {
	r.read.Add(float64(len(messages)))
	ahead, known := r.clock.Ahead()
	for i := range messages {
		// Skip messages that are older than the process, because their latency measures nothing.
		if created := messages[i].CreatedAt; known && !created.IsZero() && created.Add(-ahead).After(r.clock.since) {
			r.latency.Observe(max(0, now.Sub(created.Add(-ahead)).Seconds()))
		}
	}
}

// Woken counts a cause that ended a wait of the reader.
func (r *Reader) Woken(by string) { r.wakes.WithLabelValues(by).Inc() }
