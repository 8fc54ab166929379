package main

import (
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// demoTables are the tables that demos have left.
func demoTables(t *testing.T, db mysqltest.Database) []string {
	t.Helper()
	return mysqltest.Values[string](t, db, `SELECT TABLE_NAME FROM information_schema.TABLES
		WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME LIKE 'mqnotify\_demo\_%'`)
}

// The demo prints a line for every message in order, and everything else on stderr. It drops its table at the end.
func TestDemo(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		r := mqnotify(t, config, "", "demo", "--count", "7", "--interval", "1ms")
		require.Equal(t, exitDone, r.code, r.err)
		lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
		require.Len(t, lines, 7)
		for i, line := range lines {
			require.Regexp(t, fmt.Sprintf(`^ +%d  \d\d:\d\d:\d\d\.\d{3} +\d+\.\d\d ms  message %d of 7$`, i+1, i+1), line)
		}
		require.Contains(t, r.err, "7 messages, publish to handler: median ")
		require.NotContains(t, r.err, "level=WARN")
		require.Empty(t, demoTables(t, db))
	})
}

func TestDemoInterrupted(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		d := background(t, config, "demo", "--count", "1000000", "--interval", "0s") // the interrupt comes during a publish
		d.out.contains(t, "message 3 of")
		require.Len(t, demoTables(t, db), 1)
		r := d.interrupt(t)
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, strings.Count(r.out, "\n"), strings.Count(r.out, "message "))
		require.Empty(t, demoTables(t, db))
	})
}

// A write error ends the demo. The end of a reader such as head is no failure.
func TestDemoToBrokenStdout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		for _, c := range []struct {
			out  io.Writer
			code int
			said string
		}{{brokenStream{}, exitFailed, "mqnotify: print: no space left\n"}, {closedPipe{}, exitDone, ""}} {
			var err text
			a := newApp(streams{out: c.out, err: &err})
			require.Equal(t, c.code, a.run(t.Context(), []string{"demo", "--dsn", config.FormatDSN()}), err.String())
			require.Contains(t, err.String(), c.said)
			require.Empty(t, demoTables(t, db))
		}
	})
}

// closedPipe is a pipe whose reader has ended.
type closedPipe struct{}

func (closedPipe) Write([]byte) (int, error) { return 0, syscall.EPIPE }
