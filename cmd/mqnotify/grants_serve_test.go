package main

import (
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/brokertest"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// TestGrantsOfServe is TestGrantsAreTheLeast for serve and capture.
func TestGrantsOfServe(t *testing.T) {
	leastOfAll(t, []role{
		{"serve", []string{"serve: mqnotify"}, func(t *testing.T, a account) bool {
			return a.serves(t, func(string) bool { return true })
		}},
		{"serve of a shared group", []string{"serve: mqnotify", "besides, for groups whose members"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "consume", "orders", "--group", "shared", "--members-share", "--stop-at-end")
			defer mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_offset WHERE group_name = 'shared'")
			return a.serves(t, func(string) bool { return true })
		}},
		{"serve that publishes", []string{"serve: mqnotify", "serve, besides, for POST"}, func(t *testing.T, a account) bool {
			return a.serves(t, func(url string) bool {
				status, _ := ask(t, http.MethodPost, url+"/messages", "x")
				return status == http.StatusCreated
			})
		}},
		{"serve that publishes once", []string{"serve: mqnotify", "serve, besides, to publish with"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_idempotency")
			mysqltest.Exec(t, a.db, "INSERT INTO mqnotify_idempotency (topic, name, message_id, digest, created_at) VALUES ('orders', 'old', 1, '', '2020-01-01')")
			return a.serves(t, func(url string) bool {
				status, _ := ask(t, http.MethodPost, url+"/messages", "x", "Idempotency-Key: k")
				again, _ := ask(t, http.MethodPost, url+"/messages", "x", "Idempotency-Key: k")
				return status == http.StatusCreated && again == http.StatusOK && within(t, a.most, func() bool {
					return len(mysqltest.Values[string](t, a.db, "SELECT 1 FROM mqnotify_idempotency WHERE name = 'old'")) == 0
				})
			})
		}},
		{"serve that retries", []string{"serve: mqnotify", "serve, besides, to retry"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_dead_letter")
			mqnotify(t, a.root, "", "consume", "orders", "--group", "g", "--reset", "--from", "1", "--stop-at-end", "--attempts", "1", "--", "false")
			id := mysqltest.Values[string](t, a.db, "SELECT MAX(id) FROM mqnotify_dead_letter")[0]
			return a.serves(t, func(url string) bool {
				status, _ := ask(t, http.MethodPost, url+"/dead-letters/"+id+"/retry", "")
				return status == http.StatusOK
			})
		}},
		{"capture", []string{"capture:"}, func(t *testing.T, a account) bool {
			defer func() { mqnotify(t, a.root, "", "capture", "remove", "orders") }()
			if !a.can(t, "capture", "install", "orders") {
				return false
			}
			for _, change := range []string{"INSERT INTO orders (payload) VALUES ('x')", "UPDATE orders SET payload = 'y' LIMIT 1", "DELETE FROM orders LIMIT 1"} {
				if _, err := a.db.ExecContext(t.Context(), change); err != nil {
					return false
				}
			}
			return strings.Contains(succeed(t, a.config, "capture", "status"), "orders_changes") &&
				a.can(t, "capture", "remove", "orders")
		}},
		{"capture that repairs", []string{"capture:", "capture, besides: mqnotify capture repair"}, func(t *testing.T, a account) bool {
			defer func() { mqnotify(t, a.root, "", "capture", "remove", "orders") }()
			succeed(t, a.root, "capture", "install", "orders")
			if !a.can(t, "capture", "repair", "orders") {
				return false
			}
			_, err := a.db.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')") // the trigger runs with the privileges of the account
			return err == nil
		}},
		{"capture with a snapshot", []string{"capture:", "capture, besides: mqnotify capture snapshot"}, func(t *testing.T, a account) bool {
			defer func() {
				mqnotify(t, a.root, "", "capture", "remove", "orders")
				mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_snapshot")
			}()
			return a.can(t, "capture", "install", "orders", "--snapshot") && a.can(t, "capture", "snapshot", "orders") &&
				strings.Contains(mqnotify(t, a.config, "", "capture", "status", "--json").out, `"snapshot":{"done":true`)
		}},
	})
}

// TestGrantsOfImport is TestGrantsAreTheLeast for import.
func TestGrantsOfImport(t *testing.T) {
	broker := brokertest.Redis(t)
	role{"importer", []string{"importer:"}, func(t *testing.T, a account) bool { return a.imports(t, broker) }}.least(t)
}

// serves reports whether a server of this account shows the topic's messages and groups, and whether does succeeds there.
func (a account) serves(t *testing.T, does func(url string) bool) bool {
	t.Helper()
	succeed(t, a.root, "consume", "orders", "--group", "g", "--stop-at-end")
	r := background(t, a.config, "serve", "orders", "--listen", "127.0.0.1:0")
	const refused = "can't be read"
	url := ""
	within(t, patience, func() bool {
		select {
		case <-r.ended:
			return true
		default:
			said := r.err.String()
			if found := servedAt.FindStringSubmatch(said); found != nil {
				url = found[1]
			}
			return url != "" || strings.Contains(said, refused)
		}
	})
	if url == "" {
		r.interrupt(t)
		return false
	}
	ready := false
	within(t, patience, func() bool {
		status, _ := ask(t, http.MethodGet, url+"/readyz", "")
		ready = status == http.StatusOK
		return ready || strings.Contains(r.err.String(), refused)
	})
	url += "/topics/orders"
	shows := func() bool {
		status, events := ask(t, http.MethodGet, url+"/messages?after=beginning", "")
		_, state := ask(t, http.MethodGet, url, "")
		letters, _ := ask(t, http.MethodGet, url+"/dead-letters", "")
		return status == http.StatusOK && strings.Contains(events, `"payload":"z"`) &&
			strings.Contains(state, `"group":"g"`) && letters == http.StatusOK
	}
	did := ready && shows() && does(url)
	return r.interrupt(t).code == exitDone && did
}

// ask makes a request and returns its status and body. Each header is "Name: value".
func ask(t *testing.T, method, url, body string, headers ...string) (status int, answer string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	require.NoError(t, err)
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		request.Header.Set(name, value)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return response.StatusCode, string(all)
}

// imports reports whether an import stores a message and deletes an old id.
func (a account) imports(t *testing.T, broker *brokertest.Broker) bool {
	t.Helper()
	mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_import")
	origin := "redis://" + broker.Addr() + "/0/" + a.root.DBName // the name that the import stores
	mysqltest.Exec(t, a.db, "INSERT INTO mqnotify_import (topic, source, message_id, seen_at) VALUES ('orders', ?, 'old', '2020-01-01')", origin)
	client := redis.NewClient(&redis.Options{Addr: broker.Addr(), Username: brokertest.User, Password: brokertest.Password})
	defer client.Close()
	require.NoError(t, client.Del(t.Context(), a.root.DBName).Err())
	require.NoError(t, client.XAdd(t.Context(), &redis.XAddArgs{Stream: a.root.DBName, Values: []string{"payload", "imported"}}).Err())
	before := len(mysqltest.Values[string](t, a.db, "SELECT id FROM orders WHERE payload = 'imported'"))
	r := background(t, a.config, "import", "--from", broker.URL("stream="+a.root.DBName), "--into", "orders")
	ended := false
	did := within(t, a.most, func() bool {
		select {
		case <-r.ended:
			ended = true
			return true
		default:
			return len(mysqltest.Values[string](t, a.db, "SELECT id FROM orders WHERE payload = 'imported'")) > before &&
				len(mysqltest.Values[string](t, a.db, "SELECT 1 FROM mqnotify_import WHERE message_id = 'old'")) == 0
		}
	})
	return did && !ended && r.interrupt(t).code == exitDone
}
