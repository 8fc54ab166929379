package main

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/bridge"
)

// On a terminal a backlog draws a progress bar. The next message gets a line of its own: that the backlog is done, or why the
// bridge ends.
func TestProgressBar(t *testing.T) {
	at := func(id uint64) bridge.Progress {
		return bridge.Progress{Sent: int(id - 1000), ID: id, From: 1000, Head: 2000, Elapsed: time.Second}
	}
	for _, last := range []uint64{1500, 2000} {
		var err text
		a := newApp(streams{err: &err})
		p := a.newProgress("orders", true)
		require.Eventually(t, func() bool { // not every report draws the bar
			p.report(at(1500))
			return strings.Contains(err.String(), "50%") && strings.Contains(err.String(), "(500/1000")
		}, patience, 20*time.Millisecond)
		require.Contains(t, err.String(), "orders")
		require.NotContains(t, err.String(), "\n")
		require.Eventually(t, func() bool { // not every call draws the bar
			p.waits(1501, time.Minute)
			return strings.Contains(err.String(), "orders: waits for id 1501, at most 1m0s")
		}, patience, 20*time.Millisecond)
		require.Eventually(t, func() bool {
			p.report(at(1600))
			shown := err.String()
			return strings.LastIndex(shown, "(600/1000") > strings.LastIndex(shown, "waits for")
		}, patience, 20*time.Millisecond)
		if last == 2000 {
			p.report(at(2000))
			said := err.String()
			line := said[strings.LastIndex(said[:len(said)-1], "\n")+1:]
			require.Contains(t, line, `msg="the backlog is done" topic=orders sent=1000 refused=0 id=2000 head=2000 percent=100.0`)
			p.report(at(2001))
			require.Equal(t, said, err.String(), "later messages are no backlog")
		}
		p.end()
		require.Equal(t, "\n", err.String()[len(err.String())-1:])
		ended := err.String()
		p.end()
		require.Equal(t, ended, err.String())
	}
}

// Without a terminal there is no progress bar.
func TestNoTerminal(t *testing.T) {
	file, err := os.CreateTemp(t.TempDir(), "err")
	require.NoError(t, err)
	defer file.Close()
	require.False(t, newApp(streams{err: file}).drawsProgress())
	require.False(t, newApp(streams{err: &text{}}).drawsProgress())
	null, err := os.Open(os.DevNull) // a character device, like a terminal
	require.NoError(t, err)
	defer null.Close()
	require.False(t, newApp(streams{err: null}).drawsProgress())
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer terminal.Close()
	a := newApp(streams{err: terminal})
	require.True(t, a.drawsProgress())
	a.logging.format = formatJSON
	require.False(t, a.drawsProgress())
}
