package examples_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// visitor acts as a browser's EventSource, which reconnects with its cursor.
type visitor struct {
	tb     testing.TB
	cursor string
	notes  []string
}

// read follows a server's events until the visitor has n notes.
func (v *visitor) read(url string, n int) {
	v.tb.Helper()
	ctx, cancel := context.WithTimeout(v.tb.Context(), patience)
	defer cancel()
	var response *http.Response
	require.Eventually(v.tb, func() bool { // 503 until the server has read the topic
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/events?after=beginning", http.NoBody)
		require.NoError(v.tb, err)
		request.Close = true
		if v.cursor != "" {
			request.Header.Set("Last-Event-ID", v.cursor)
		}
		response, err = http.DefaultClient.Do(request) //nolint:bodyclose // below, and here
		require.NoError(v.tb, err)
		if response.StatusCode == http.StatusServiceUnavailable {
			_ = response.Body.Close()
			return false
		}
		return true
	}, patience, tick)
	defer response.Body.Close()
	require.Equal(v.tb, http.StatusOK, response.StatusCode)
	lines := bufio.NewScanner(response.Body)
	for len(v.notes) < n {
		require.True(v.tb, lines.Scan(), "the stream ended with %d of %d notes", len(v.notes), n)
		switch field, value, _ := strings.Cut(lines.Text(), ": "); field {
		case "id":
			v.cursor = value
		case "data":
			var note struct{ Payload string }
			require.NoError(v.tb, json.Unmarshal([]byte(value), &note))
			v.notes = append(v.notes, note.Payload)
		}
	}
}

// A note that is written at one server appears at the other. A visitor whose server is killed connects to the other one and gets
// the missed notes, each once. The server serves the page, but none of package serve's other addresses.
func testLive(t *testing.T, s *mysqltest.Server, binary string) {
	t.Helper()
	config := s.Database(t)
	first, here := serve(t, config, binary)
	second, there := serve(t, config, binary)
	var want []string
	write := func(url string, n int) {
		t.Helper()
		for range n {
			note := fmt.Sprintf("note %d", len(want))
			status, answer, _ := must(t, http.MethodPost, url+"/notes", note)
			require.Equal(t, http.StatusCreated, status, answer)
			want = append(want, note)
		}
	}
	write(here, 3)
	visitor := &visitor{tb: t}
	visitor.read(there, 3)
	write(here, 3)
	visitor.read(here, 6)
	first.kill()
	write(there, 5)
	visitor.read(there, 11)
	assert.Equal(t, want, visitor.notes)

	status, page, header := must(t, http.MethodGet, there+"/", "")
	require.Equal(t, http.StatusOK, status)
	assert.Contains(t, page, "EventSource")
	assert.Contains(t, header.Get("Content-Security-Policy"), "default-src 'self'")
	for path, want := range map[string]int{"/topics": 404, "/topics/board/messages": 404, "/metrics": 404, "/notes": 405} {
		status, _, _ = must(t, http.MethodGet, there+path, "")
		assert.Equal(t, want, status, path)
	}
	for _, wrong := range []string{"", strings.Repeat("x", 281)} {
		status, _, _ = must(t, http.MethodPost, there+"/notes", wrong)
		assert.Equal(t, http.StatusBadRequest, status)
	}
	second.stop()
}

// In a real browser, the page shows the visitor's notes, and after an interruption also the notes that others wrote meanwhile,
// each once.
func testLivePage(t *testing.T, s *mysqltest.Server, binary string) {
	t.Helper()
	browser := mysqltest.Chromium(t)
	config := s.Database(t)
	port, err := child.FreePort() // fixed, because the server comes back to it
	require.NoError(t, err)
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	p, url := serve(t, config, binary, "-listen", address)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(browser), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.Flag("disable-dev-shm-usage", true), // a tab crashes if the servers' data leave no room there
		chromedp.WSURLReadTimeout(patience))
	allocator, endBrowser := chromedp.NewExecAllocator(context.Background(), options...)
	defer endBrowser()
	tab, endTab := chromedp.NewContext(allocator, chromedp.WithErrorf(func(string, ...any) {}))
	defer endTab()
	tab, late := context.WithTimeout(tab, 5*patience)
	defer late()
	do := func(actions ...chromedp.Action) {
		t.Helper()
		require.NoError(t, chromedp.Run(tab, actions...))
	}
	shows := func(want ...string) {
		t.Helper()
		var has []string
		require.Eventually(t, func() bool {
			do(chromedp.Evaluate(`[...document.querySelectorAll("li")].map((item) => item.textContent)`, &has))
			return slices.Equal(want, has)
		}, patience, tick, "%v", want)
	}
	do(chromedp.Navigate(url), chromedp.SendKeys("input", "<b>first</b>\r"))
	shows("<b>first</b>")
	p.kill()
	db := openDB(t, config)
	mysqltest.Exec(t, db.Pool(), "INSERT INTO board (payload) VALUES ('second')")
	// A proxy answers in the server's place. A browser does not reconnect after such an answer.
	asked := make(chan bool, 1)
	listener, err := child.Listen("tcp", address)
	require.NoError(t, err)
	proxy := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "not now", http.StatusServiceUnavailable)
		select {
		case asked <- true:
		default:
		}
	})}}
	proxy.Start()
	<-asked
	proxy.Close()
	p = start(t, config, binary, "-listen", address)
	shows("second", "<b>first</b>")
	do(chromedp.SendKeys("input", "third\r"))
	shows("third", "second", "<b>first</b>")
	require.NoError(t, chromedp.Cancel(tab))
	p.stop()
}
