package serve

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/mqnotify/mqnotify/consumer"
)

// metrics are the server's, in a registry of its own.
type metrics struct {
	registry   *prometheus.Registry
	latency    *prometheus.HistogramVec
	delivered  *prometheus.CounterVec
	wakes      *prometheus.CounterVec
	sent       *prometheus.CounterVec
	ended      *prometheus.CounterVec
	published  *prometheus.CounterVec
	reconnects *prometheus.CounterVec
	backfills  *prometheus.CounterVec
	clock      *clock
}

func newMetrics(s *Server) *metrics {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "mqnotify_" + name, Help: help}, append([]string{"topic"}, labels...))
	}
	m := &metrics{
		registry: prometheus.NewRegistry(),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "mqnotify_latency_seconds",
			Help: "From a message's insertion, by the database's clock, to its being handed to clients. A transaction that stays open counts.",
			// From a fraction of a round trip to the longest wait between two polls, and more.
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 60},
		}, []string{"topic"}),
		delivered:  counter("messages_read_total", "Messages that were read from the topic."),
		wakes:      counter("wakes_total", "Times that the reader came back from waiting, by what ended the wait.", "kind"),
		sent:       counter("messages_sent_total", "Messages that were sent to clients.", "kind"),
		ended:      counter("streams_ended_total", "Event streams that ended, and why.", "reason"),
		published:  counter("messages_published_total", "Messages that were published over HTTP."),
		reconnects: counter("reader_lost_total", "Times that the reader lost its connection and began again."),
		backfills:  counter("backfills_total", "Times that a client's missing messages were read from the table for it alone."),
		clock:      &clock{},
	}
	m.registry.MustRegister(m.latency, m.delivered, m.wakes, m.sent, m.ended, m.published, m.reconnects, m.backfills,
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "mqnotify_statements_total", Help: "Statements, and other commands of the protocol, that were sent to the database: a packet of several is one. 0 where nobody counts them."},
			func() float64 { return float64(s.options.Commands()) }),
		&topicCollector{s}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// topicMetrics are a topic's.
type topicMetrics struct {
	latency                                prometheus.Observer
	wakes                                  *prometheus.CounterVec
	read, published, reconnects, backfills prometheus.Counter
	clock                                  *clock
}

func (m *metrics) topic(name string) *topicMetrics {
	return &topicMetrics{
		m.latency.WithLabelValues(name), m.wakes.MustCurryWith(prometheus.Labels{"topic": name}), m.delivered.WithLabelValues(name),
		m.published.WithLabelValues(name), m.reconnects.WithLabelValues(name), m.backfills.WithLabelValues(name), m.clock,
	}
}

// delivered notes messages that are handed out now.
func (m *topicMetrics) delivered(messages []consumer.Message, now time.Time) {
	m.read.Add(float64(len(messages)))
	ahead, known := m.clock.ahead()
	for i := range messages {
		// What was there before the server was is no measure of anything.
		if created := messages[i].CreatedAt; known && !created.IsZero() && created.Add(-ahead).After(m.clock.since) {
			m.latency.Observe(max(0, now.Sub(created.Add(-ahead)).Seconds()))
		}
	}
}

// woken counts what ends the reader's waits.
func (m *topicMetrics) woken(by consumer.Wake) { m.wakes.WithLabelValues(string(by)).Inc() }

// topicCollector tells of topics what is known when it is asked.
type topicCollector struct{ server *Server }

var (
	clientsDesc = prometheus.NewDesc("mqnotify_clients", "Clients of the topic's events.", []string{"topic"}, nil)
	headDesc    = prometheus.NewDesc("mqnotify_head", "The topic's largest id.", []string{"topic"}, nil)
	lagDesc     = prometheus.NewDesc("mqnotify_group_lag", "Messages that a group has before it, counted up to 10000.", []string{"topic", "group"}, nil)
	deadDesc    = prometheus.NewDesc("mqnotify_group_dead_letters", "Messages that a group gave up, counted up to 10000.", []string{"topic", "group"}, nil)
	activeDesc  = prometheus.NewDesc("mqnotify_group_active", "Whether a member of the group is active.", []string{"topic", "group"}, nil)
	triggerDesc = prometheus.NewDesc("mqnotify_wake_trigger", "Whether the topic has a wake trigger that works, so that every INSERT wakes its readers.", []string{"topic"}, nil)
	leaderDesc  = prometheus.NewDesc("mqnotify_gate_led", "Whether a session leads the topic's gate.", []string{"topic"}, nil)
	waitersDesc = prometheus.NewDesc("mqnotify_gate_followers", "Other sessions that wait at the topic's gate, of those that the account may see.", []string{"topic"}, nil)
)

func (c *topicCollector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{clientsDesc, headDesc, lagDesc, deadDesc, activeDesc, triggerDesc, leaderDesc, waitersDesc} {
		to <- d
	}
}

func (c *topicCollector) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	one := func(is bool) float64 {
		if is {
			return 1
		}
		return 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second) // for all: a scrape has little more
	defer cancel()
	for name, t := range c.server.topics {
		clients, _, _ := t.hub.state()
		gauge(clientsDesc, float64(clients), name)
		state, err := t.status.get(ctx)
		if err != nil {
			continue
		}
		gauge(triggerDesc, one(state.Trigger), name)
		gauge(leaderDesc, one(state.Gate.Leader != 0), name)
		gauge(waitersDesc, float64(state.Gate.Followers), name)
		if state.Groups == nil {
			continue
		}
		gauge(headDesc, float64(state.Groups.Head), name)
		for _, g := range state.Groups.Groups {
			gauge(lagDesc, float64(g.Waiting.N), name, g.Group)
			gauge(deadDesc, float64(g.DeadLetters.N), name, g.Group)
			gauge(activeDesc, one(g.Session != 0 || g.Leased), name, g.Group)
		}
	}
}
