package mysqltest

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Text collects text that is written and read at the same time: a log, or the output of a process. The zero Text is empty.
type Text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Write(p)
}

// String returns all that was written so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.String()
}

// Logger returns a logger that writes to the test's log. It drops what is logged after the test's end.
func Logger(tb testing.TB, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{Level: level}))
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(line []byte) (int, error) {
	if w.tb.Context().Err() == nil { // canceled just before the Cleanup functions run
		w.tb.Log(string(line))
	}
	return len(line), nil
}
