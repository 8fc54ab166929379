package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/capture"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// Names in the tables of `wake status` and `capture status` can't move the cursor or look like other lines.
func TestNamesAreHarmless(t *testing.T) {
	mysqltest.Once(t)
	const odd = "a\x1b[2Jb\nc"
	woken := wakeTable([]wake.State{{Table: odd, Definer: odd, Problem: odd}})
	captured := captureTable([]capture.State{{Table: odd, Topic: odd, Missed: []string{odd}}})
	for _, text := range []string{woken, captured} {
		require.NotContains(t, text, "\x1b")
		require.Equal(t, 2, strings.Count(text, "\n"), text)
	}
}
