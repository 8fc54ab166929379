package main

import (
	"bufio"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

var servedAt = regexp.MustCompile(`url=(https?://\S+)/`)

// address returns the address in the log of a server.
func (r *running) address(tb testing.TB) string {
	tb.Helper()
	r.err.contains(tb, "msg=serving")
	found := servedAt.FindStringSubmatch(r.err.String())
	require.NotNil(tb, found, r.err.String())
	return found[1]
}

// A client gets a published message as an event. Ctrl-C ends the server and the stream.
func TestServe(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		r := background(t, config, "serve", "orders", "--listen", "127.0.0.1:0")
		url := r.address(t)
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		var events *http.Response
		require.Eventually(t, func() bool {
			response, err := client.Get(url + "/topics/orders/events?after=beginning")
			if err != nil || response.StatusCode != http.StatusOK {
				if err == nil {
					response.Body.Close()
				}
				return false
			}
			events = response
			return true
		}, patience, patience/1000)
		defer events.Body.Close()
		succeed(t, config, "produce", "orders", "hello")
		lines := bufio.NewScanner(events.Body)
		until := func(beginning string) {
			for lines.Scan() {
				if strings.HasPrefix(lines.Text(), beginning) {
					return
				}
			}
			t.Fatalf("the stream ended before %s: %v", beginning, lines.Err())
		}
		until(`data: {"id":1,"topic":"orders"`)
		require.Contains(t, lines.Text(), `"payload":"hello"`)
		require.Equal(t, exitDone, r.interrupt(t).code)
		until(`data: {"reason":"shutdown"`)
	})
}

// No answer and no log shows a token. Without tokens, serve refuses to serve other machines.
func TestServeRefusals(t *testing.T) {
	tokens := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(tokens, []byte("a very-secret-0123456789 read:orders\n"), 0o600))
	wrong := filepath.Join(t.TempDir(), "wrong")
	require.NoError(t, os.WriteFile(wrong, []byte("a very-secret-0123456789 rad:orders\n"), 0o600))
	open := filepath.Join(t.TempDir(), "open")
	require.NoError(t, os.WriteFile(open, []byte("a very-secret-0123456789 read:orders\n"), 0o600))
	require.NoError(t, os.Chmod(open, 0o640))
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, "CREATE VIEW v AS SELECT * FROM orders")
		require.Contains(t, fail(t, exitUsage, config, "serve", "orders", "--listen", ":8080"), "no tokens are given")
		require.Contains(t, fail(t, exitFailed, config, "serve", "order"), "did you mean `orders`")
		for _, origin := range []string{"*", "shop.example", "https://shop.example/"} {
			require.Contains(t, fail(t, exitUsage, config, "serve", "orders", "--cors", origin), "write https://shop.example")
		}
		require.Contains(t, fail(t, exitFailed, config, "serve", "v"), "is a view")
		mysqltest.ExecAll(t, db, "CREATE TABLE named (name VARCHAR(20) PRIMARY KEY, n INT NOT NULL, KEY (n))", "CREATE TABLE numbered (n INT PRIMARY KEY)")
		for _, table := range []string{"named", "numbered"} {
			said := fail(t, exitFailed, config, "serve", table)
			require.Contains(t, said, "`mqnotify capture install "+table+"`")
			require.NotContains(t, said, "--id-column")
		}
		message := fail(t, exitFailed, config, "serve", "orders", "--tokens", wrong)
		require.Contains(t, message, "line 1")
		require.NotContains(t, message, "very-secret")
		require.Contains(t, fail(t, exitFailed, config, "serve", "orders", "--tls-cert", tokens, "--tls-key", tokens), "certificate")
		for _, open := range [][]string{{"--tokens", open}, {"--tls-cert", tokens, "--tls-key", open}} {
			require.Contains(t, fail(t, exitFailed, config, append([]string{"serve", "orders"}, open...)...), "run chmod 600 ")
		}

		r := background(t, config, "serve", "orders", "--tokens", tokens, "--listen", "0.0.0.0:0", "--log-level", "debug")
		url := strings.Replace(r.address(t), "[::]", "127.0.0.1", 1)
		r.err.contains(t, "unencrypted")
		request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, url+"/topics/orders", http.NoBody)
		require.NoError(t, err)
		request.Header.Set("Authorization", "Bearer very-secret-0123456789x")
		client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
		response, err := client.Do(request)
		require.NoError(t, err)
		defer response.Body.Close()
		require.Equal(t, http.StatusUnauthorized, response.StatusCode)
		require.NotContains(t, r.interrupt(t).err, "very-secret")
	})
}

// serve is ready when it says that it serves.
func TestServeReady(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders", "invoices")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('one'), ('two')")
		url := background(t, config, "serve", "orders", "invoices", "--listen", "127.0.0.1:0").address(t)
		var status int
		var answer string
		require.Eventually(t, func() bool { // on a busy machine the database may take longer than the 2 s that it has
			status, answer = ask(t, http.MethodGet, url+"/readyz", "")
			return !strings.Contains(answer, "the database does not answer")
		}, patience, 25*time.Millisecond)
		require.Equal(t, http.StatusOK, status, answer)
	})
}

// serve fails at once if the account cannot read the groups. It does not log the error again and again.
func TestServeWithoutPrivileges(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, _ := database(t, s, "orders")
		grants := slices.DeleteFunc(grantsOf(root, "serve: mqnotify"), func(grant string) bool { return strings.Contains(grant, "mqnotify_offset") })
		message := fail(t, exitFailed, s.User(t, root, grants...), "serve", "orders", "--listen", "127.0.0.1:0")
		require.Contains(t, message, "mqnotify_offset")
		require.Contains(t, message, "`mqnotify grants` shows what the account needs")
	})
}
