package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/mqnotify/mqnotify/consumer"
)

var (
	headDesc   = prometheus.NewDesc("mqnotify_head", "The topic's largest id.", []string{"topic"}, nil)
	lagDesc    = prometheus.NewDesc("mqnotify_group_lag", "Messages that the group has not handled yet, counted up to 10000.", []string{"topic", "group"}, nil)
	deadDesc   = prometheus.NewDesc("mqnotify_group_dead_letters", "Dead letters of the group, counted up to 10000.", []string{"topic", "group"}, nil)
	activeDesc = prometheus.NewDesc("mqnotify_group_active", "Whether a member of the group is active.", []string{"topic", "group"}, nil)
)

// DescribeGroups describes the metrics of CollectGroups.
func DescribeGroups(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{headDesc, lagDesc, deadDesc, activeDesc} {
		to <- d
	}
}

// CollectGroups collects the progress of a topic's groups.
func CollectGroups(to chan<- prometheus.Metric, topic string, status *consumer.Status) {
	Gauge(to, headDesc, float64(status.Head), topic)
	for _, g := range status.Groups {
		Gauge(to, lagDesc, float64(g.Waiting), topic, g.Group)
		Gauge(to, deadDesc, float64(g.DeadLetters), topic, g.Group)
		Gauge(to, activeDesc, One(g.Session != 0 || g.Leased), topic, g.Group)
	}
}

// Gauge collects a gauge.
func Gauge(to chan<- prometheus.Metric, desc *prometheus.Desc, value float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
}

// One returns 1 for true and 0 for false.
func One(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
