package main

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A line for each notification, and nothing for what came before. A topic needs no table.
func TestListenPrints(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "notify", "re load")
		plain := background(t, config, "listen", "re load", "--limit", "2", "--look", "50ms")
		plain.err.contains(t, "listening")
		asJSON := background(t, config, "listen", "re load", "--json")
		asJSON.err.contains(t, "listening")
		require.Empty(t, plain.out.String()+asJSON.out.String())

		require.Empty(t, succeed(t, config, "notify", "re load"))
		plain.out.contains(t, "\n")
		asJSON.out.contains(t, "\n")
		succeed(t, config, "notify", "re load")
		r := plain.wait(t)
		require.Equal(t, exitDone, r.code)
		require.Regexp(t, `^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z re load\n){2}$`, r.out)
		r = asJSON.interrupt(t)
		require.Equal(t, exitDone, r.code)
		require.Equal(t, 1, strings.Count(r.err, "\n"), r.err)
		var line struct {
			Time  time.Time `json:"time"`
			Topic string    `json:"topic"`
		}
		require.NoError(t, json.Unmarshal([]byte(strings.SplitAfter(r.out, "\n")[0]), &line))
		require.Equal(t, "re load", line.Topic)
		require.WithinDuration(t, time.Now(), line.Time, patience)

		rows := background(t, config, "listen", "orders", "--limit", "1")
		rows.err.contains(t, "listening")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
		require.Regexp(t, `Z orders\n$`, rows.wait(t).out)
	})
}

// A command runs at each, one at a time; one that fails ends nothing.
func TestListenRunsCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		gate := filepath.Join(t.TempDir(), "gate")
		l := background(t, config, "listen", "jobs", "--look", "50ms", "--at-start", "--limit", "3", "--", "sh", "-c",
			"echo $0 $MQNOTIFY_TOPIC; cat; while ! [ -e "+gate+" ]; do sleep 0.05; done; exit 7", "run")
		l.out.contains(t, "run jobs\n")
		for range 3 { // which are one, since it runs
			succeed(t, config, "notify", "jobs")
		}
		require.Equal(t, "run jobs\n", l.out.String())
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		l.out.contains(t, "run jobs\nrun jobs\n")
		succeed(t, config, "notify", "jobs")
		r := l.wait(t)
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, strings.Repeat("run jobs\n", 3), r.out)
		require.Equal(t, 3, strings.Count(r.err, `msg="the command failed" error="sh: exit status 7"`), r.err)
	})
}

// Ctrl-C lets the command in hand finish.
func TestListenCommandInterrupted(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		gate := filepath.Join(t.TempDir(), "gate")
		l := background(t, config, "listen", "jobs", "--at-start", "--",
			"sh", "-c", "echo begun; while ! [ -e "+gate+" ]; do sleep 0.05; done; echo ended")
		l.out.contains(t, "begun\n")
		l.stop()
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		require.Equal(t, "begun\nended\n", l.wait(t).out)
		require.Equal(t, exitDone, l.code)
	})
}

// A server that goes away is waited for, by a listener, which is told, and by a producer between two lines.
func TestReconnects(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config, db := database(t, own, "orders")
		l := background(t, config, "listen", "reload")
		l.err.contains(t, "listening")
		in, typed := io.Pipe()
		p := start(t, environment(t, config), in, "produce", "orders", "--print-ids")
		_, err := io.WriteString(typed, "one\n")
		require.NoError(t, err)
		p.out.contains(t, "1\n")
		own.Stop()
		l.err.contains(t, "level=WARN msg=\"lost the gate; it goes on by itself\" topic=reload error=")
		_, err = io.WriteString(typed, "two\n")
		require.NoError(t, err)
		p.err.contains(t, "the server is away")
		own.Restart(t)
		l.out.contains(t, "reload\n") // what was missed, perhaps
		before := strings.Count(l.out.String(), "\n")
		succeed(t, config, "notify", "reload")
		require.Eventually(t, func() bool { return strings.Count(l.out.String(), "\n") > before }, patience, time.Millisecond)
		require.Equal(t, exitDone, l.interrupt(t).code)
		p.out.contains(t, "2\n")
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, p.wait(t).code)
		require.Equal(t, []string{"one", "two"}, mysqltest.Values[string](t, db, "SELECT payload FROM orders ORDER BY id"))

		// One that was never there is not.
		own.Stop()
		for _, command := range []string{"listen reload", "notify reload", "produce orders x"} {
			require.Contains(t, fail(t, exitFailed, config, strings.Fields(command)...), "is the server running there?")
		}
	})
}
