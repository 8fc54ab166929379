package mysqltest

import (
	"context"
	"database/sql"
	"io"
	"os"
	"testing"
	"time"
)

// Examples runs Examples that need a server, and compares what each prints with the value in the map. They run one after
// the other, in random order. The caller sets MQNOTIFY_DSN.
func Examples(t *testing.T, examples map[string]func()) {
	t.Helper()
	for want, example := range examples {
		if printed := Output(t, example); printed != want {
			t.Errorf("an Example printed\n%s\ninstead of\n%s", printed, want)
		}
	}
}

// Until returns a context for an Example that would never end: it is canceled when the query, which is repeated, returns
// true, or by stop. Without a query only stop cancels it.
func Until(t *testing.T, examples *context.Context, db *sql.DB, query string) (stop context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	*examples = ctx //nolint:fatcontext // it is made of the test's, not of the Example before
	if query == "" {
		return stop
	}
	go func() {
		defer stop()
		ticker := time.NewTicker(5 * time.Millisecond)
		defer ticker.Stop()
		for done := false; !done; {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			_ = db.QueryRowContext(ctx, query).Scan(&done) // asked again
		}
	}()
	return stop
}

// Output returns what f prints to the standard output. A process has only one, so Output is
// not for tests that run in parallel.
func Output(tb testing.TB, f func()) string {
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	printed := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(r) // what is missing is seen
		_ = r.Close()
		printed <- string(all)
	}()
	stdout := os.Stdout
	os.Stdout = w
	defer func() {
		os.Stdout = stdout
		_ = w.Close()
	}()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f()
	}()
	select {
	case <-ended:
	case <-time.After(patience):
		tb.Fatalf("the Example does not end")
	}
	_ = w.Close()
	return <-printed
}
