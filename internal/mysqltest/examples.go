package mysqltest

import (
	"context"
	"database/sql"
	"io"
	"os"
	"testing"
	"time"
)

// Examples runs Examples that need a server. The key of each in the map is the output that it must have. They run one after
// another, in random order. The caller sets MQNOTIFY_DSN.
func Examples(t *testing.T, examples map[string]func()) {
	t.Helper()
	for want, example := range examples {
		if printed := Output(t, example); printed != want {
			t.Errorf("an Example printed\n%s\ninstead of\n%s", printed, want)
		}
	}
}

// Until sets *examples to a context for an Example that would never end by itself. stop cancels the context, and so does the
// query, which is repeated, when it returns true. With an empty query only stop cancels the context.
func Until(t *testing.T, examples *context.Context, db *sql.DB, query string) (stop context.CancelFunc) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	*examples = ctx //nolint:fatcontext // its parent is the test's context, not that of the previous Example
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
			_ = db.QueryRowContext(ctx, query).Scan(&done) // after an error the query is repeated
		}
	}()
	return stop
}

// Output returns what f prints to the standard output. It replaces os.Stdout of the whole process, so tests that run in
// parallel must not call it.
func Output(tb testing.TB, f func()) string {
	tb.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	printed := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(r) // after an error the output is incomplete, and the comparison fails
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
