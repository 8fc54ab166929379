package serve

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	readerToken    = "reader-0123456789"
	publisherToken = "publisher-0123456789"
	adminToken     = "admin-0123456789"
)

func testTokens(tb testing.TB) []string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "tokens")
	require.NoError(tb, os.WriteFile(file, fmt.Appendf(nil, `# who may do what
reader     %s     read:orders
publisher  sha256:%x  publish:or*
admin      %s      admin:*
`, readerToken, sha256.Sum256([]byte(publisherToken)), adminToken), 0o600))
	tokens, err := ReadTokens(file)
	require.NoError(tb, err)
	return tokens
}

// Every address accepts only requests with its scope. No answer and no log line contains a token.
func TestScopes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders", "invoices")
		var log mysqltest.Text
		site := start(t, db, Options{Topics: []string{"orders", "invoices"}, Tokens: testTokens(t), penalty: time.Millisecond, Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		const none, wrong = "", "wrong-0123456789"
		for _, test := range []struct {
			method, path string
			want         map[string]int // by token
		}{
			{"GET", "/", map[string]int{none: 200, wrong: 200}},
			{"GET", "/healthz", map[string]int{none: 200}},
			{"GET", "/readyz", map[string]int{none: 200}},
			{"GET", "/metrics", map[string]int{none: 401, wrong: 401, readerToken: 403, publisherToken: 403, adminToken: 200}},
			{"GET", "/topics", map[string]int{none: 401, wrong: 401, readerToken: 200}},
			{"GET", "/topics/orders", map[string]int{none: 401, wrong: 401, readerToken: 200, publisherToken: 403, adminToken: 200}},
			{"GET", "/topics/invoices", map[string]int{readerToken: 403, adminToken: 200}},
			{"GET", "/topics/mqnotify_offset", map[string]int{none: 401, readerToken: 403, adminToken: 404}},
			{"GET", "/topics/nosuch/events", map[string]int{none: 401, readerToken: 403, adminToken: 404}},
			{"GET", "/topics/orders/messages", map[string]int{none: 401, readerToken: 200, publisherToken: 403, adminToken: 200}},
			{"POST", "/topics/orders/messages", map[string]int{none: 401, wrong: 401, readerToken: 403, publisherToken: 201, adminToken: 201}},
			{"POST", "/topics/invoices/messages", map[string]int{publisherToken: 403, adminToken: 201}},
			{"GET", "/topics/orders/dead-letters", map[string]int{none: 401, readerToken: 403, publisherToken: 403, adminToken: 200}},
			{"POST", "/topics/orders/dead-letters/1/retry", map[string]int{none: 401, readerToken: 403, publisherToken: 403, adminToken: 404}},
			{"DELETE", "/topics/orders/dead-letters/1", map[string]int{none: 401, readerToken: 403, publisherToken: 403, adminToken: 404}},
			{"DELETE", "/topics/orders/dead-letters/x", map[string]int{adminToken: 404}},
			{"PUT", "/topics/orders/messages", map[string]int{adminToken: 405}},
			{"GET", "/nosuch", map[string]int{none: 404}},
		} {
			for token, want := range test.want {
				var headers []string
				if token != none {
					headers = []string{"Authorization: Bearer " + token}
				}
				status, answer, header := site.askAll(t, test.method, test.path, "x", headers...)
				assert.Equal(t, want, status, "%s %s %s: %s", test.method, test.path, token, answer)
				assert.NotContains(t, answer, "0123456789")
				if status == 401 {
					assert.Equal(t, `Bearer realm="mqnotify"`, header.Get("WWW-Authenticate"))
				}
			}
		}
		for _, header := range []string{"Authorization: " + adminToken, "Authorization: Basic " + adminToken, "Authorization: Bearer " + adminToken + "x", "Authorization: Bearer"} {
			status, _ := site.ask(t, "GET", "/topics/orders", "", header)
			assert.Equal(t, 401, status, header)
		}
		_, answer := site.ask(t, "GET", "/topics", "", "Authorization: Bearer "+readerToken)
		assert.Contains(t, answer, `"topic":"orders"`)
		assert.NotContains(t, answer, "invoices")
		assert.NotContains(t, log.String(), "0123456789")
	})
}

// The error about a wrong file of tokens names the line and contains nothing of it.
func TestTokensFile(t *testing.T) {
	const secret = "very-secret-0123456789"
	for text, want := range map[string]string{
		"":                               "no token",
		"# only a comment\n\n":           "no token",
		"a " + secret:                    "line 1: write NAME TOKEN",
		"\na short read:x":               "line 2: the token has fewer than 16",
		"a " + secret + " write:x":       "write a scope as read, publish or admin",
		"a " + secret + " read":          "write a scope as read, publish or admin",
		"a " + secret + " read:":         "write a scope as read, publish or admin",
		"a " + secret + " read:a,,b":     "write a topic as a name",
		"a " + secret + " read:*a":       "write a topic as a name",
		"a sha256:" + secret + " read:x": "64 hexadecimal digits",
		fmt.Sprintf("a sha256:%x read:x", sha256.Sum256(nil)):          "line 1: it is the hash of an empty token",
		fmt.Sprintf("a sha256:%x read:x", sha256.Sum256([]byte("\n"))): "line 1: it is the hash of an empty token",
		"a " + secret + " read:x\nb " + secret + " read:y":             "line 2: a has the same token",
	} {
		_, err := parseTokens(strings.Split(text, "\n"))
		require.ErrorContains(t, err, want, text)
		assert.NotContains(t, err.Error(), "secret")
	}
	file := filepath.Join(t.TempDir(), "tokens")
	_, err := ReadTokens(file)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(file, []byte("a "+secret+" read:x"), 0o600))
	_, err = ReadTokens(file)
	require.NoError(t, err)
	require.NoError(t, os.Chmod(file, 0o644))
	_, err = ReadTokens(file)
	require.ErrorContains(t, err, "run chmod 600 "+file)
}

// A request without a token, or with a token that is too short, is refused, even if the server was given the hash of that token.
func TestEmptyTokenNeverMatches(t *testing.T) {
	short := "short"
	hashed, err := parseTokens([]string{fmt.Sprintf("a sha256:%x admin:*", sha256.Sum256([]byte(short)))})
	require.NoError(t, err) // the hash does not show the token's length
	assert.Nil(t, hashed.find(short))
	all := map[scope][]string{scopeAdmin: {"*"}}
	for _, hash := range [][sha256.Size]byte{{}, sha256.Sum256(nil)} {
		assert.Nil(t, tokens{{name: "a", hash: hash, scopes: all}}.find(""))
	}
	// A list without a token is an error. It does not mean that no tokens are required.
	for _, lines := range [][]string{{}, {"", "# none"}, {fmt.Sprintf("a sha256:%x admin:*", [sha256.Size]byte{})}} {
		_, err := Options{Topics: []string{"orders"}, Tokens: lines}.withDefaults()
		require.ErrorIs(t, err, notify.ErrOptions)
	}
}

// The server counts requests with a wrong token and answers them late. It logs few of them, with the client's address but
// without the token. For a request with a right token, the access log has the token's name.
func TestWrongTokens(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		var log mysqltest.Text
		site := start(t, db, Options{
			Topics: []string{"orders"}, Tokens: testTokens(t), penalty: 100 * time.Millisecond, MaxConnections: 16,
			Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		})
		began := time.Now()
		for range 5 {
			status, _ := site.ask(t, "GET", "/topics/orders", "", "Authorization: Bearer wrong-0123456789")
			assert.Equal(t, http.StatusUnauthorized, status)
		}
		took := time.Since(began)
		assert.GreaterOrEqual(t, took, 500*time.Millisecond)
		site.options.penalties <- struct{}{} // another answer is being delayed
		status, _, header := site.askAll(t, "GET", "/topics/orders", "", "Authorization: Bearer wrong-0123456789")
		<-site.options.penalties
		assert.Equal(t, http.StatusTooManyRequests, status)
		assert.Equal(t, "2", header.Get("Retry-After"))
		_, text := site.ask(t, "GET", "/metrics", "", "Authorization: Bearer "+adminToken)
		assert.Contains(t, text, "mqnotify_wrong_tokens_total 6\n")
		lines := strings.Count(log.String(), "a request had a wrong token")
		assert.Positive(t, lines)
		assert.LessOrEqual(t, lines, int(time.Since(began).Seconds())+1)
		assert.Contains(t, log.String(), "client=127.0.0.1")
		assert.NotContains(t, log.String(), "0123456789")

		site.ask(t, "GET", "/topics/orders", "", "Authorization: Bearer "+readerToken)
		site.ask(t, "DELETE", "/topics/orders/dead-letters/1", "", "Authorization: Bearer "+adminToken)
		mysqltest.Eventually(t, "the access log names the tokens", func() bool {
			return strings.Contains(log.String(), "status=200 token=reader") && strings.Contains(log.String(), "level=INFO msg=request method=DELETE path=/topics/orders/dead-letters/1 status=404 token=admin")
		})
	})
}

// Only an admin sees the names of members, because they contain accounts and hosts.
func TestStateWithoutAccounts(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_offset (topic, group_name, settled, delivered, fence, version, member) VALUES ('orders', 'mailer', 0, '', 1, 1, 'root@host')")
		site := start(t, db, Options{Topics: []string{"orders"}, Tokens: testTokens(t)})
		for _, path := range []string{"/topics", "/topics/orders"} {
			_, answer := site.ask(t, "GET", path, "", "Authorization: Bearer "+readerToken)
			assert.Contains(t, answer, `"group":"mailer"`)
			assert.NotContains(t, answer, "root")
			_, answer = site.ask(t, "GET", path, "", "Authorization: Bearer "+adminToken)
			assert.Contains(t, answer, "root")
		}
	})
}

// Invalid requests get the reason as JSON, with a status that does not ask the client to try again.
func TestRequestsThatMakeNoSense(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := start(t, db, Options{Topics: []string{"orders"}})
		runs := "1" + strings.Repeat("+100000000000000", 2000)
		for _, test := range []struct{ method, path, header string }{
			{"GET", "/topics/orders/events", "Last-Event-ID: " + runs},
			{"GET", "/topics/orders/messages?after=" + strings.ReplaceAll(runs, "+", "%2B"), ""},
			{"GET", "/topics/orders/events", "Last-Event-ID: \xff"},
			{"GET", "/topics/orders/dead-letters?group=%ff", ""},
		} {
			status, answer := site.ask(t, test.method, test.path, "", test.header)
			assert.Equal(t, http.StatusBadRequest, status, "%.60s %.30s", test.path, test.header)
			assert.Contains(t, answer, `{"error":"`)
		}
		status, answer, header := site.askAll(t, "POST", "/topics/orders/messages", "x", "Origin: https://other.example", "Sec-Fetch-Site: cross-site")
		assert.Equal(t, http.StatusForbidden, status)
		assert.Contains(t, answer, `{"error":"`)
		assert.Contains(t, header.Get("Content-Type"), "application/json")
	})
}

// Over HTTPS, the server tells browsers to use only HTTPS, except for localhost.
func TestStrictTransportSecurity(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		options := Options{Topics: []string{"orders"}, Tokens: testTokens(t)}
		secure, plain := startTLS(t, db, options), start(t, db, options)
		for _, test := range []struct {
			site *site
			host string
			want string
		}{{secure, "shop.example", "max-age=31536000"}, {secure, "localhost", ""}, {plain, "shop.example", ""}} {
			_, _, header := test.site.askAll(t, "GET", "/healthz", "", "Host: "+test.host)
			assert.Equal(t, test.want, header.Get("Strict-Transport-Security"))
		}
	})
}

// Without tokens, the server listens only on this machine, answers only to this machine's names, and refuses requests that
// another site's page makes in the user's browser.
func TestLoopbackOnly(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		everywhere, err := net.Listen("tcp", "0.0.0.0:0")
		require.NoError(t, err)
		server, err := New(db, Options{Topics: []string{"orders"}, Logger: quiet})
		require.NoError(t, err)
		require.ErrorIs(t, server.Serve(t.Context(), everywhere, nil), ErrNoTokens)
		_, err = everywhere.Accept()
		require.ErrorIs(t, err, net.ErrClosed)

		site := start(t, db, Options{Topics: []string{"orders"}, Origins: []string{"https://shop.example"}})
		for _, host := range []string{"evil.example", "evil.example:80", "127.0.0.1.evil.example"} {
			status, _ := site.ask(t, "GET", "/topics", "", "Host: "+host)
			assert.Equal(t, 403, status, host)
		}
		status, _ := site.ask(t, "POST", "/topics/orders/messages", "x", "Origin: https://evil.example", "Sec-Fetch-Site: cross-site")
		assert.Equal(t, 403, status)
		status, _ = site.ask(t, "POST", "/topics/orders/messages", "x", "Origin: https://evil.example")
		assert.Equal(t, 403, status)

		// CORS allows only the origins in Options.
		status, _, header := site.askAll(t, "OPTIONS", "/topics/orders/messages", "", "Origin: https://shop.example", "Access-Control-Request-Method: POST")
		assert.Equal(t, 204, status)
		assert.Equal(t, "https://shop.example", header.Get("Access-Control-Allow-Origin"))
		_, _, header = site.askAll(t, "OPTIONS", "/topics/orders/messages", "", "Origin: https://shop.example", "Access-Control-Request-Method: POST",
			"Access-Control-Request-Headers: idempotency-key, mqnotify-header-kind,mqnotify-header-of, x-other")
		allowed := strings.Split(strings.ToLower(header.Get("Access-Control-Allow-Headers")), ", ")
		assert.Subset(t, allowed, []string{"idempotency-key", "mqnotify-header-kind", "mqnotify-header-of"})
		assert.NotContains(t, allowed, "x-other")
		status, _, header = site.askAll(t, "POST", "/topics/orders/messages", "x", "Origin: https://shop.example", "Sec-Fetch-Site: cross-site")
		assert.Equal(t, 201, status)
		assert.Equal(t, "https://shop.example", header.Get("Access-Control-Allow-Origin"))
		_, _, header = site.askAll(t, "GET", "/topics", "", "Origin: https://evil.example")
		assert.Empty(t, header.Get("Access-Control-Allow-Origin"))
		_, _, header = site.askAll(t, "OPTIONS", "/topics/orders/messages", "", "Origin: https://evil.example", "Access-Control-Request-Method: POST")
		assert.Empty(t, header.Get("Access-Control-Allow-Origin"))
	})
}

// The server serves HTTPS, and with it HTTP/2.
func TestTLS(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		site := startTLS(t, db, Options{Topics: []string{"orders"}})
		response, err := site.client.Get(site.url + "/readyz")
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, 2, response.ProtoMajor)
		r := site.events(t, "/topics/orders/events").joined()
		insert(t, db, "orders", "encrypted")
		assert.Equal(t, []string{"encrypted"}, r.payloads(1))
		r.cancel()
	})
}

// An error says what is wrong in a request, and nothing is stored.
func TestBadRequests(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE plain (id INT AUTO_INCREMENT PRIMARY KEY, n INT)")
		site := start(t, db, Options{Topics: []string{"orders", "plain"}, MaxBody: 100})
		for _, test := range []struct {
			method, path, body, header string
			status                     int
			text                       string
		}{
			{"POST", "/topics/orders/messages", strings.Repeat("x", 101), "", 413, "at most 100 bytes"},
			{"POST", "/topics/plain/messages", "x", "", 409, "store messages"},
			{"POST", "/topics/orders/messages", "x", "Idempotency-Key: " + strings.Repeat("k", 256), 400, "255 bytes"},
			{"POST", "/topics/orders/messages", "x", "Idempotency-Key: \xff", 400, "UTF-8"},
			{"GET", "/topics/orders/events?after=x", "", "", 400, "cursor is invalid"},
			{"GET", "/topics/orders/events", "", "Last-Event-ID: 5+4", 400, "cursor is invalid"},
			{"GET", "/topics/orders/messages?after=-1", "", "", 400, "cursor is invalid"},
			{"GET", "/topics/orders/messages?wait=1h", "", "", 400, "at most 5m"},
			{"GET", "/topics/orders/messages?wait=x", "", "", 400, "at most 5m"},
			{"GET", "/topics/orders/messages?limit=0", "", "", 400, "1 to 1000"},
			{"GET", "/topics/orders/messages?limit=1001", "", "", 400, "1 to 1000"},
		} {
			status, answer := site.ask(t, test.method, test.path, test.body, test.header)
			assert.Equal(t, test.status, status, "%+v", test)
			var failure struct{ Error string }
			require.NoError(t, json.Unmarshal([]byte(answer), &failure), answer)
			assert.Contains(t, failure.Error, test.text)
		}
		status, _ := site.ask(t, "GET", "/topics/orders/events", "", "Last-Event-ID: "+strings.Repeat("1", 30_000))
		assert.Equal(t, http.StatusBadRequest, status)
		var rows int
		require.NoError(t, db.Pool().GetContext(t.Context(), &rows, "SELECT COUNT(*) FROM orders"))
		assert.Zero(t, rows)
	})
}

// A cursor past the end of the table is refused, but only after patience, because the server may be behind.
func TestCursorPastTheEnd(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", "1")
		site := start(t, db, Options{Topics: []string{"orders"}, patience: 100 * time.Millisecond})
		status, answer := site.ask(t, "GET", "/topics/orders/events", "", "Last-Event-ID: 100")
		assert.Equal(t, http.StatusConflict, status, answer)
		assert.Contains(t, answer, "emptied")
	})
}

func TestOptions(t *testing.T) {
	db, err := notify.Open("user:password@tcp(127.0.0.1:1)/none")
	require.NoError(t, err)
	defer db.Close()
	for _, o := range []Options{
		{}, {Topics: []string{"a"}, Buffer: -1}, {Topics: []string{"a"}, MaxBody: -1}, {Topics: []string{"a"}, ReconnectAfter: -1},
		{Topics: []string{"a"}, Mode: "handshake"}, {Topics: []string{"a"}, Mode: "pol"}, {Topics: []string{"a"}, Grace: -1},
		{Topics: []string{"a"}, MaxBody: math.MaxInt64}, {Topics: []string{"a"}, MaxConnections: math.MaxInt}, {Topics: []string{"a"}, DatabaseRequests: math.MaxInt},
	} {
		_, err := New(db, o)
		require.ErrorIs(t, err, notify.ErrOptions)
	}
	var invalid *ident.InvalidError
	_, err = New(db, Options{Topics: []string{""}})
	require.ErrorAs(t, err, &invalid)
}
