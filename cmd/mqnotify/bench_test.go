package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/bench"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Every suite prints figures with their floors and draws a plot. It leaves nothing in the database.
func TestBench(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		plot := filepath.Join(t.TempDir(), "latency.svg")
		small := []string{"--rounds", mysqltest.Size("1", "1", "3"), "--rows", mysqltest.Size("60", "300", "3000"), "--listeners", "3",
			"--writers", mysqltest.Size("2", "2", "60"), "--for", "200ms"} // 60 are more than a pool has connections by default
		out := succeed(t, config, append([]string{"bench", "--json", "--plot", plot}, small...)...)
		lines := strings.Split(strings.TrimSpace(out), "\n")
		require.Len(t, lines, len(bench.Suites))
		for i, line := range lines {
			var suite struct {
				Suite   string
				Figures []bench.Figure
			}
			require.NoError(t, json.Unmarshal([]byte(line), &suite))
			require.Equal(t, bench.Suites[i], suite.Suite)
			ratios := 0
			for _, f := range suite.Figures {
				require.NotEmpty(t, f.Name)
				before := strings.HasPrefix(f.Name, "commit to ") // the handler may be called before the publish returns
				if f.Unit != "1/s" {                              // a rate may be 0, or less in a later round
					require.True(t, f.Median > 0 || before, f.Name)
					require.GreaterOrEqual(t, f.P99, f.Median)
					require.GreaterOrEqual(t, f.Max, f.P99)
				}
				if f.Floor != "" {
					require.True(t, f.Ratio > 0 || before, f.Name)
					ratios++
				}
			}
			require.Positive(t, ratios, line)
		}
		drawn, err := os.ReadFile(plot)
		require.NoError(t, err)
		require.Contains(t, string(drawn), "<svg")
		for _, what := range []string{"share of samples", "latency against idle statements", "polling each 100ms"} {
			require.Contains(t, string(drawn), what)
		}
		r := mqnotify(t, config, "", append([]string{"bench", "latency"}, small...)...)
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.out, "a round trip")
		require.NotContains(t, r.err, "poll")
		if !s.IsMariaDB() { // an account that can't be woken gets one warning that it polls
			config.User = mysqltest.SystemUser
			r = mqnotify(t, config, "", append([]string{"bench", "latency", "fanout"}, small...)...)
			require.Equal(t, exitDone, r.code, r.err)
			require.Equal(t, 1, strings.Count(r.err, "SYSTEM_USER"), r.err)
		}
		require.Empty(t, mysqltest.Values[string](t, open(t, config), "SELECT table_name FROM information_schema.tables"+
			" WHERE table_schema = DATABASE() AND table_name LIKE 'mqnotify\\_bench%'"))
		require.Equal(t, []string{"0"}, mysqltest.Values[string](t, open(t, config), "SELECT (SELECT COUNT(*) FROM mqnotify_task) + (SELECT COUNT(*) FROM mqnotify_queue)"))
	})
}

func TestBenchWrong(t *testing.T) {
	for _, args := range [][]string{
		{"bench", "speed"}, {"bench", "--plot", "x.nope"}, {"bench", "--plot", "/nowhere/x.svg"}, {"bench", "--rounds", "0"}, {"bench", "--rows", "-1"}, {"bench", "--listeners", "0"}, {"bench", "--for", "1ms"},
	} {
		fail(t, 2, nil, args...)
	}
}
