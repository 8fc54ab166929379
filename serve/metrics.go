package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mqnotify/mqnotify/internal/metrics"
)

// serverMetrics are a server's metrics, in a registry of their own.
type serverMetrics struct {
	registry    *prometheus.Registry
	readers     *metrics.Readers
	sent        *prometheus.CounterVec
	ended       *prometheus.CounterVec
	published   *prometheus.CounterVec
	reconnects  *prometheus.CounterVec
	backfills   *prometheus.CounterVec
	busy        prometheus.Counter
	wrongTokens prometheus.Counter
}

func newMetrics(s *Server) *serverMetrics {
	registry := metrics.NewRegistry(s.options.Commands)
	m := &serverMetrics{
		registry:    registry,
		readers:     metrics.NewReaders(registry),
		sent:        metrics.NewCounter("messages_sent_total", "Messages that were sent to clients.", "kind"),
		ended:       metrics.NewCounter("streams_ended_total", "Event streams that ended, by reason.", "reason"),
		published:   metrics.NewCounter("messages_published_total", "Messages that were published over HTTP."),
		reconnects:  metrics.NewCounter("reader_lost_total", "How often the reader lost its connection."),
		backfills:   metrics.NewCounter("backfills_total", "How often the messages that a client missed were read from the table."),
		busy:        prometheus.NewCounter(prometheus.CounterOpts{Name: "mqnotify_busy_total", Help: "Requests that were refused because too many others were running."}),
		wrongTokens: prometheus.NewCounter(prometheus.CounterOpts{Name: "mqnotify_wrong_tokens_total", Help: "Requests with a token that the server does not know."}),
	}
	m.registry.MustRegister(m.sent, m.ended, m.published, m.reconnects, m.backfills, m.busy, m.wrongTokens, &topicCollector{s})
	return m
}

// topicMetrics are a topic's metrics.
type topicMetrics struct {
	*metrics.Reader
	published, reconnects, backfills prometheus.Counter
}

func (m *serverMetrics) topic(name string) *topicMetrics {
	return &topicMetrics{
		m.readers.Topic(name), m.published.WithLabelValues(name), m.reconnects.WithLabelValues(name), m.backfills.WithLabelValues(name),
	}
}

// topicCollector collects the topics' state at each scrape.
type topicCollector struct{ server *Server }

var (
	clientsDesc = prometheus.NewDesc("mqnotify_clients", "Clients of the topic's events.", []string{"topic"}, nil)
	triggerDesc = prometheus.NewDesc("mqnotify_wake_trigger", "Whether the topic has a wake trigger that works, so that every INSERT wakes its readers.", []string{"topic"}, nil)
	leaderDesc  = prometheus.NewDesc("mqnotify_gate_led", "Whether a session leads the topic's gate.", []string{"topic"}, nil)
	waitersDesc = prometheus.NewDesc("mqnotify_gate_followers", "Other sessions that wait at the topic's gate, of those that the account may see.", []string{"topic"}, nil)
)

func (c *topicCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clientsDesc, triggerDesc, leaderDesc, waitersDesc} {
		to <- d
	}
	metrics.DescribeGroups(to)
}

func (c *topicCollector) Collect(to chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // for all topics, because scrapes time out soon after
	defer cancel()
	for name, t := range c.server.topics {
		clients, _, _ := t.hub.state()
		metrics.Gauge(to, clientsDesc, float64(clients), name)
		state, err := t.status.get(ctx)
		if err != nil {
			continue
		}
		metrics.Gauge(to, triggerDesc, metrics.One(state.Trigger), name)
		metrics.Gauge(to, leaderDesc, metrics.One(state.Gate.Leader != 0), name)
		metrics.Gauge(to, waitersDesc, float64(state.Gate.Followers), name)
		if state.Groups != nil {
			metrics.CollectGroups(to, name, state.Groups)
		}
	}
}
