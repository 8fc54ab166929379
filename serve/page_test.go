package serve

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// browser is a tab of a headless Chromium.
type browser struct {
	tb  testing.TB
	ctx context.Context //nolint:containedctx // chromedp keeps the tab in it
}

func openBrowser(tb testing.TB) *browser {
	tb.Helper()
	var said mysqltest.Text
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(mysqltest.Chromium(tb)), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.WindowSize(1280, 1000),
		chromedp.Flag("disable-dev-shm-usage", true), // a tab crashes if the servers' data leave no room there
		chromedp.CombinedOutput(&said), chromedp.WSURLReadTimeout(2*time.Minute))
	process, endProcess := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, endTab := chromedp.NewContext(process, chromedp.WithLogf(tb.Logf), chromedp.WithErrorf(func(string, ...any) {}))
	ctx, late := context.WithTimeout(ctx, 10*time.Minute)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the tab's context: %v; Chromium said: %s", context.Cause(ctx), said.String())
		}
		late()
		_ = chromedp.Cancel(ctx)
		endTab()
		endProcess()
	})
	b := &browser{tb, ctx}
	b.do()
	return b
}

func (b *browser) do(actions ...chromedp.Action) {
	b.tb.Helper()
	require.NoError(b.tb, chromedp.Run(b.ctx, actions...))
}

// eval evaluates an expression in JavaScript.
func eval[T any](b *browser, expression string) (value T) {
	b.tb.Helper()
	b.do(chromedp.Evaluate(expression, &value))
	return value
}

// until waits until an expression in JavaScript is true.
func (b *browser) until(expression string) {
	b.tb.Helper()
	// The wait ends at once if the browser has ended.
	if !assert.Eventually(b.tb, func() bool { return b.ctx.Err() != nil || eval[bool](b, "!!("+expression+")") }, long, 20*time.Millisecond, "%s", expression) {
		b.tb.Fatalf("the page has:\n%s", eval[string](b, "document.body.innerText"))
	}
}

// colours returns the colours of the page's background and text in the light or the dark scheme.
func (b *browser) colours(scheme string) []string {
	b.tb.Helper()
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}))
	return eval[[]string](b, `[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]`)
}

// tail returns the payloads in the live tail, oldest first.
func (b *browser) tail() []string {
	b.tb.Helper()
	return eval[[]string](b, `[...document.querySelectorAll("#tail li:not([hidden]) .payload")].map((e) => e.textContent).reverse()`)
}

// cutListener can close the connections that it accepted, and refuse new ones for a while.
type cutListener struct {
	net.Listener
	mu    sync.Mutex
	conns []net.Conn
	cut   bool
}

func (l *cutListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		_ = conn.Close()
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

func (l *cutListener) set(cut bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = cut
	for _, conn := range l.conns {
		if cut {
			_ = conn.Close()
		}
	}
}

const pageToken = "a-token-for-the-page-0123456789"

var pageTokens = []string{"ops " + pageToken + " admin:*", "viewer " + pageToken + "-viewer read:orders"}

// The page shows a row that plain SQL inserts. After a lost connection it continues without a gap. It can retry a dead letter.
func TestPage(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		b := openBrowser(t)
		config := s.Database(t)
		db := openDB(t, config, "orders", "in voi/ces")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: quiet})) // with the routines, the server uses a new trigger at once
		inner, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		listener := &cutListener{Listener: inner}
		site := startOn(t, db, Options{Topics: []string{"orders", "in voi/ces"}, Tokens: pageTokens}, listener)

		b.do(chromedp.Navigate(site.url+"/#%"), chromedp.WaitVisible("#login"), chromedp.SendKeys("#token", "wrong\r"))
		b.until(`document.getElementById("login-error").textContent === "The server does not know this token."`)
		// The fragment names no topic and can't be decoded, so the page shows the first topic.
		b.do(chromedp.SendKeys("#token", pageToken+"\r"), chromedp.WaitVisible("#tail"))
		b.until(`document.getElementById("stream").textContent === "live"`)
		assert.Equal(t, []string{"orders", "in voi/ces"}, eval[[]string](b, `[...document.querySelectorAll("#topics button")].map((e) => e.textContent)`))

		insert(t, db, "orders", "by plain SQL", `<b>"bold"</b>`)
		b.until(`document.querySelectorAll("#tail .payload").length === 2`)
		assert.Equal(t, []string{"by plain SQL", `<b>"bold"</b>`}, b.tail())
		b.until(`parseFloat(document.querySelector("#topics tr td:nth-child(2)").textContent) > 0`)

		// The connection is lost.
		listener.set(true)
		b.until(`document.getElementById("stream").textContent.startsWith("disconnected")`)
		insert(t, db, "orders", numbered(1, 20)...)
		site.knows(t, "orders", 22) // otherwise the rows would come as new events
		listener.set(false)
		b.until(`document.getElementById("stream").textContent === "live"`)
		insert(t, db, "orders", "after")
		b.until(`document.querySelectorAll("#tail .payload").length >= 23`)
		assert.Equal(t, append(append([]string{"by plain SQL", `<b>"bold"</b>`}, numbered(1, 20)...), "after"), b.tail())

		// The keys for the filter and for pausing work.
		b.do(chromedp.KeyEvent("/"))
		assert.Equal(t, "filter", eval[string](b, "document.activeElement.id"))
		filter := func(text string) {
			b.do(chromedp.Evaluate(fmt.Sprintf(`(() => { const f = document.getElementById("filter"); f.value = %q; f.dispatchEvent(new Event("input")); f.blur(); })()`, text), nil))
		}
		filter("PLAIN")
		assert.Equal(t, []string{"by plain SQL"}, b.tail())
		insert(t, db, "orders", "plain, and later", "filtered out")
		b.until(`document.querySelectorAll("#tail .payload").length >= 25`)
		assert.Equal(t, []string{"by plain SQL", "plain, and later"}, b.tail())
		filter("")
		assert.Contains(t, b.tail(), "filtered out")
		b.do(chromedp.KeyEvent("p"))
		insert(t, db, "orders", "while paused")
		b.until(`document.getElementById("pause").textContent === "Resume (1)"`)
		assert.NotContains(t, b.tail(), "while paused")
		b.do(chromedp.KeyEvent("p"))
		assert.Contains(t, b.tail(), "while paused")
		b.do(chromedp.KeyEvent("j"))
		b.until(`document.querySelector("#topics tr[aria-current] button").textContent === "in voi/ces"`)
		b.until(`document.getElementById("stream").textContent === "live"`)
		insert(t, db, "in voi/ces", "another topic")
		b.until(`document.querySelectorAll("#tail .payload").length === 1`)
		b.do(chromedp.KeyEvent("k"))

		// The page shows a group, its lag and its dead letter.
		insert(t, db, "orders", "poison")
		makeDeadLetter(t, db)
		b.until(`document.querySelector("#groups td")?.textContent === "mailer"`)
		lag := func(want string) {
			t.Helper()
			b.until(fmt.Sprintf(`document.querySelector("#groups td:nth-child(2)")?.textContent === %q`, want))
			b.until(fmt.Sprintf(`document.querySelector("#topics td:nth-child(3)")?.textContent === %q`, want))
		}
		lag("0")
		insert(t, db, "orders", "one more", "two more")
		lag("2")
		b.until(`document.querySelectorAll("#letters button").length === 2`)
		assert.Contains(t, eval[string](b, `document.querySelector("#letters .error").textContent`), "no such address")
		eval[bool](b, `document.querySelector("#letters button").first = true`) // the page's updates leave it, so that it can be clicked
		b.until(`document.getElementById("trigger").textContent.startsWith("No wake trigger works")`)
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: quiet}, "orders"))
		b.until(`document.getElementById("trigger").textContent.startsWith("The wake trigger works")`)
		start(t, openDB(t, config), Options{Topics: []string{"orders"}}) // another session at the gate
		b.until(`document.getElementById("leader").textContent.includes("leads the gate, and 1 more session waits at it")`)

		light, dark := b.colours("light"), b.colours("dark")
		assert.NotEqual(t, light[0], dark[0], "the background")
		assert.NotEqual(t, light[1], dark[1], "the text")
		b.colours("")
		screenshots(b, s.Name())
		require.True(t, eval[bool](b, `document.querySelector("#letters button").first === true`))
		b.do(chromedp.Click("#letters button"))
		b.until(`document.getElementById("dead-result").textContent.startsWith("Group mailer tries it again")`)
		b.until(`document.querySelector("#tail .headers")?.textContent.startsWith("mqnotify-retry: mailer/")`)
		assert.Equal(t, "poison", eval[string](b, `document.querySelector("#tail .payload").textContent`))
		var left int
		require.NoError(t, db.Pool().GetContext(t.Context(), &left, "SELECT COUNT(*) FROM mqnotify_dead_letter"))
		assert.Zero(t, left)

		// On a phone, nothing is wider than the screen.
		b.do(chromedp.EmulateViewport(360, 740))
		b.until("document.documentElement.scrollWidth <= 360")
		b.do(chromedp.Navigate("about:blank"))
	})
}

// makeDeadLetter makes the newest message a dead letter.
func makeDeadLetter(tb testing.TB, db *notify.DB) {
	tb.Helper()
	c, err := consumer.New(db, "orders", consumer.Options{Group: "mailer", From: "last 1", StopAtEnd: true, MaxAttempts: 1, Logger: quiet, Member: "host1:4711"})
	require.NoError(tb, err)
	require.NoError(tb, c.Run(tb.Context(), consumer.Each(func(context.Context, consumer.Message) error {
		return fmt.Errorf("send: 550 no such address")
	})))
}

// screenshots writes screenshots of the page into the folder in MQNOTIFY_SCREENSHOTS, if it is set: in the light and the dark
// scheme, also in the width of a phone.
func screenshots(b *browser, name string) {
	b.tb.Helper()
	folder := os.Getenv("MQNOTIFY_SCREENSHOTS")
	if folder == "" {
		return
	}
	for _, shot := range []struct {
		name, scheme  string
		width, height int64
	}{{"light", "light", 1280, 1000}, {"dark", "dark", 1280, 1000}, {"phone", "light", 390, 844}, {"phone-dark", "dark", 390, 844}} {
		var image []byte
		b.do(chromedp.EmulateViewport(shot.width, shot.height),
			emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: shot.scheme}}),
			chromedp.FullScreenshot(&image, 100))
		require.NoError(b.tb, os.WriteFile(filepath.Join(folder, name+"-"+shot.name+".png"), image, 0o600))
	}
	b.do(chromedp.EmulateViewport(1280, 1000))
}
