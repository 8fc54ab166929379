package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stdout has a line for each message, in order, and nothing else. Everything else goes to stderr.
func TestRun(t *testing.T) {
	var stdout, stderr bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"--count", "7", "--interval", "1ms"}, &stdout, &stderr), stderr.String())
	lines := strings.Split(strings.TrimSuffix(stdout.String(), "\n"), "\n")
	require.Len(t, lines, 7)
	for i, line := range lines {
		require.Regexp(t, fmt.Sprintf(`^ +%d  \d\d:\d\d:\d\d\.\d{3} +\d+\.\d\d ms  message %d of 7$`, i+1, i+1), line)
	}
	require.Contains(t, stderr.String(), "For trying only")
	require.Contains(t, stderr.String(), "7 messages, publish to handler: median ")
	require.NotContains(t, stderr.String(), "level=")
}

// stopper ends a context at the third message.
type stopper struct {
	stop func()
	all  strings.Builder
}

func (s *stopper) Write(p []byte) (int, error) {
	if strings.Contains(string(p), "message 3 of") {
		s.stop()
	}
	return s.all.Write(p)
}

func TestInterrupted(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	out := &stopper{stop: stop}
	require.Zero(t, run(ctx, []string{"--count", "1000000", "--interval", "0s"}, out, &bytes.Buffer{}))
	require.Contains(t, out.all.String(), "message 3 of")
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{{"--count", "0"}, {"--speed", "1"}, {"now"}} {
		var stderr bytes.Buffer
		require.Equal(t, 2, run(t.Context(), args, &bytes.Buffer{}, &stderr))
		require.Contains(t, stderr.String(), "demo: ")
	}
}
