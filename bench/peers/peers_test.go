package main

import (
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// In the short form every peer still does its work, mqnotify loses no message, plain polling loses the late ones, and the page
// is written.
func TestShort(t *testing.T) {
	docs := t.TempDir()
	results, err := run(t.Context(), settings{server: defaultServer, docs: docs, short: true})
	require.NoError(t, err)
	of := map[string]*result{}
	for _, r := range results {
		of[r.peer.name] = r
		require.Len(t, r.latencies, short.samples, r.peer.name)
		require.Positive(t, rate(r.publish), r.peer.name)
		require.Equal(t, r.peer.keeps, rate(r.read) > 0, r.peer.name)
		require.Equal(t, short.late, r.late, r.peer.name)
		if r.peer.ours {
			require.Zero(t, r.lost, r.peer.name)
		}
	}
	for _, name := range []string{"mqnotify, wake trigger, our producer", "mqnotify, mqnotify_wake, our producer", "watermill-sql, polls each 10ms", "plain polling each 100ms"} {
		require.Contains(t, of, name)
	}
	plain := of["plain polling each 100ms"]
	require.Positive(t, plain.lost)
	require.GreaterOrEqual(t, plain.lost+plain.held, short.late, "on a busy machine one may be read after the commit")
	require.Greater(t, of["watermill-sql, polls each 10ms"].idle, of["mqnotify, wake trigger, a plain INSERT"].idle)

	written, err := os.ReadFile(filepath.Join(docs, "benchmarks.md"))
	require.NoError(t, err)
	for name := range of {
		require.GreaterOrEqual(t, strings.Count(string(written), "| "+name+" |"), 4, name)
	}
	drawn, err := os.ReadFile(filepath.Join(docs, "benchmarks.svg"))
	require.NoError(t, err)
	require.Contains(t, string(drawn), "latency against idle statements")
}

// With latency and only, the benchmark prints the latencies of the chosen peers.
func TestLatencyOfSome(t *testing.T) {
	results, err := run(t.Context(), settings{server: defaultServer, docs: "/nowhere", short: true, latency: true, only: "a plain INSERT|plain polling each 100ms"})
	require.NoError(t, err)
	require.Len(t, results, 2)
	for _, r := range results {
		require.Regexp(t, "^"+regexp.QuoteMeta(r.peer.name)+`: from the publish to the handler \d+\.\d\d ms, p99 \d+\.\d\d, of 5 messages$`, r.String())
		require.Empty(t, r.publish)
	}
}

// The page names the machine of the measurement.
func TestMachine(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux shows the processor's name and the memory")
	}
	require.Regexp(t, `^[1-9]\d* cores( \(.+\))?, [1-9][\d.]* GiB of memory, linux/`, strings.Join(machine(), ", "))
}
