//go:build !nodemo

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A line for each message in order, and all that is not a message elsewhere.
func TestDemo(t *testing.T) {
	r := mqnotify(t, nil, "", "demo", "--count", "7", "--interval", "1ms")
	require.Equal(t, exitDone, r.code, r.err)
	lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
	require.Len(t, lines, 7)
	for i, line := range lines {
		require.Regexp(t, fmt.Sprintf(`^ +%d  \d\d:\d\d:\d\d\.\d{3} +\d+\.\d\d ms  message %d of 7$`, i+1, i+1), line)
	}
	require.Contains(t, r.err, "For trying only")
	require.Contains(t, r.err, "7 messages, publish to handler: median ")
	require.NotContains(t, r.err, "level=")
}

func TestDemoInterrupted(t *testing.T) {
	d := background(t, nil, "demo", "--count", "1000000", "--interval", "0s") // it is always in the middle of a publish
	d.out.contains(t, "message 3 of")
	r := d.interrupt(t)
	require.Equal(t, exitDone, r.code, r.err)
	require.Equal(t, strings.Count(r.out, "\n"), strings.Count(r.out, "message "))
}

func TestDemoToBrokenStdout(t *testing.T) {
	var err text
	a := newApp(streams{out: brokenStream{}, err: &err})
	require.Equal(t, exitFailed, a.run(t.Context(), []string{"demo"}))
	require.Contains(t, err.String(), "mqnotify: no space left\n")
}
