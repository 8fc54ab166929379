package mysqltest

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
)

// Text is what is written and read at the same time: a log, or what a process says. The zero Text is empty.
type Text struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.Write(p)
}

// String is all that was written so far.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.all.String()
}

// Logger logs to the test, and nowhere after its end.
func Logger(tb testing.TB, level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{tb}, &slog.HandlerOptions{Level: level}))
}

type testWriter struct{ tb testing.TB }

func (w testWriter) Write(line []byte) (int, error) {
	if w.tb.Context().Err() == nil { // cancelled just before the cleanups
		w.tb.Log(string(line))
	}
	return len(line), nil
}
