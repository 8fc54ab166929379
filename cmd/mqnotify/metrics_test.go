package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Every command that runs until it is stopped serves metrics and its health with --metrics.
func TestMetrics(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders", "payments")
		succeed(t, config, "init", "--queue", "mail")
		succeed(t, config, "produce", "orders", "1", "2")
		succeed(t, config, "enqueue", "mail", "x")
		broker := brokertest.Redis(t)
		options, err := redis.ParseURL(broker.URL(""))
		require.NoError(t, err)
		client := redis.NewClient(options)
		defer func() { require.NoError(t, client.Close()) }()
		require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: "in", Values: []any{"payload", "1"}}).Err())
		for want, line := range map[string]string{
			`mqnotify_messages_read_total{topic="orders"} 2`:                        "consume orders --group g --from beginning",
			`mqnotify_tasks_total{outcome="done",queue="mail"} 1`:                   "work mail",
			`mqnotify_bridge_messages_total{outcome="sent",topic="orders"} 2`:       "bridge orders --group b --to stdout",
			`mqnotify_imported_messages_total{outcome="stored",topic="payments"} 1`: "import --into payments --from " + broker.URL("stream=in"),
		} {
			args := append(words(line), "--metrics", "127.0.0.1:0")
			if args[0] == "work" {
				args = append(args, "--", "true")
			}
			r := background(t, config, args...)
			r.err.contains(t, "/metrics")
			url := regexp.MustCompile(`http://[^/]+/metrics`).FindString(r.err.String())
			ask := func(url string) string {
				response, err := http.Get(url) //nolint:gosec // the URL is that of the command
				require.NoError(t, err)
				defer func() { _ = response.Body.Close() }()
				require.Equal(t, http.StatusOK, response.StatusCode)
				text, err := io.ReadAll(response.Body)
				require.NoError(t, err)
				return string(text)
			}
			mysqltest.Eventually(t, want, func() bool { return strings.Contains(ask(url), want+"\n") })
			text := ask(url)
			require.True(t, regexp.MustCompile(`(?m)^mqnotify_statements_total [1-9]`).MatchString(text))
			require.True(t, regexp.MustCompile(`(?m)^process_open_fds`).MatchString(text))
			if group, has := map[string]string{"consume": "g", "bridge": "b"}[args[0]]; has {
				mysqltest.Eventually(t, "the group", func() bool {
					return strings.Contains(ask(url), `mqnotify_group_lag{group="`+group+`",topic="orders"} 0`)
				})
			}
			require.JSONEq(t, `{"status":"ok"}`, ask(strings.Replace(url, "/metrics", "/healthz", 1)))
			require.Equal(t, exitDone, r.interrupt(t).code)
			_, err := http.Get(url) //nolint:gosec,bodyclose // the request fails
			require.Error(t, err, "the port is free again")
		}
		message := fail(t, exitFailed, config, "consume", "orders", "--metrics", "nowhere:x")
		require.Contains(t, message, "--metrics")
	})
}
