package serve

import (
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// counted returns the value of a metric, or 0 if there is none.
func counted(tb testing.TB, site *site, name string) float64 {
	tb.Helper()
	_, text := site.ask(tb, http.MethodGet, "/metrics", "")
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			var value float64
			_, err := fmt.Sscan(rest, &value)
			require.NoError(tb, err)
			return value
		}
	}
	return 0
}

// more repeats an action until a counter has grown.
func (s *site) more(tb testing.TB, name string, cause func()) {
	tb.Helper()
	before := counted(tb, s, name)
	require.Eventually(tb, func() bool {
		cause()
		return counted(tb, s, name) > before
	}, long, 50*time.Millisecond, name)
}

// The page documents every metric, and the alerts use only metrics that exist.
func TestMetricsInDocs(t *testing.T) {
	descriptions := make(chan *prometheus.Desc, 256)
	newMetrics(&Server{}).registry.Describe(descriptions)
	close(descriptions)
	names := map[string]bool{}
	for description := range descriptions {
		name := regexp.MustCompile(`fqName: "(\w+)"`).FindStringSubmatch(description.String())
		if require.NotNil(t, name); strings.HasPrefix(name[1], "mqnotify_") {
			names[name[1]] = true
		}
	}
	named := func(page, from, to string) []string {
		text, err := os.ReadFile("../docs/" + page)
		require.NoError(t, err)
		_, after, has := strings.Cut(string(text), from)
		require.True(t, has, from)
		section, _, _ := strings.Cut(after, to)
		return regexp.MustCompile(`mqnotify_[a-z_]+`).FindAllString(section, -1)
	}
	page := named("reference/http.md", "## Metrics\n", "\n## ")
	for name := range names {
		assert.Contains(t, page, name)
	}
	for _, name := range append(page, named("guide/operations.md", "- name: mqnotify\n", "```")...) {
		assert.True(t, names[strings.TrimSuffix(name, "_bucket")], "%s is no metric", name)
	}
}

// Wakes are counted by kind.
func TestWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: quiet})) // with the routines, the server uses a new trigger at once
		site := start(t, db, Options{Topics: []string{"orders"}})
		site.more(t, `mqnotify_wakes_total{kind="poll",topic="orders"}`, func() { insert(t, db, "orders", "x") })
		require.Zero(t, counted(t, site, `mqnotify_wake_trigger{topic="orders"}`))
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: quiet}, "orders"))
		site.more(t, `mqnotify_wakes_total{kind="trigger",topic="orders"}`, func() { insert(t, db, "orders", "x") })
		site.more(t, `mqnotify_wakes_total{kind="trigger",topic="orders"}`, func() { site.ask(t, "POST", "/topics/orders/messages", "x") })
		mysqltest.Eventually(t, "the trigger works", func() bool { return counted(t, site, `mqnotify_wake_trigger{topic="orders"}`) == 1 })
	})
}

// Lost connections of a reader are counted.
func TestLosses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config, "orders")
		site := start(t, openDB(t, config), Options{Topics: []string{"orders"}})
		const lost = `mqnotify_reader_lost_total{topic="orders"}`
		require.Zero(t, counted(t, site, lost))
		for _, id := range mysqltest.Sessions(t, s.Admin(t), config.DBName, "") {
			mysqltest.KillSession(t, s.Admin(t), id)
		}
		mysqltest.Eventually(t, lost, func() bool { // the reader notices the loss only when it uses its connection
			_, _ = db.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')") // its connection was killed, too
			return counted(t, site, lost) > 0
		})
	})
}
