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
	"github.com/mqnotify/mqnotify/notify"
)

// listen prints a line for every notification of its names that is sent after the log line "listening".
func TestListenPrints(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		succeed(t, config, "notify", "re load", "too early")
		plain := background(t, config, "listen", "re load", "größe/1", "--limit", "5")
		plain.err.contains(t, "msg=listening")
		asJSON := background(t, config, "listen", "re load", "--json")
		asJSON.err.contains(t, "msg=listening")

		require.Empty(t, succeed(t, config, "notify", "re load"))
		succeed(t, config, "notify", "another", "not for them")
		succeed(t, config, "notify", "größe/1", `{"größe": 7}`)
		succeed(t, config, "notify", "re load", "two\nlines")
		succeed(t, config, "notify", "re load", "-")
		mysqltest.Exec(t, db, "INSERT INTO mqnotify_notification (name, payload) VALUES ('re load', x'00ff')")
		r := plain.wait(t)
		require.Equal(t, exitDone, r.code)
		const at = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z `
		require.Regexp(t, "^"+at+"re load\n"+at+`größe/1 {"größe": 7}`+"\n"+at+`re load "two\\nlines"`+"\n"+at+"re load -\n"+at+`re load "\\x00\\xff"`+"\n$", r.out)

		asJSON.out.contains(t, "payload_base64")
		r = asJSON.interrupt(t)
		require.Equal(t, exitDone, r.code)
		require.Equal(t, 1, strings.Count(r.err, "\n"), r.err)
		lines := strings.Split(strings.TrimSuffix(r.out, "\n"), "\n")
		require.Len(t, lines, 4, r.out)
		for i, want := range []string{`"payload":""`, `"payload":"two\nlines"`, `"payload":"-"`, `"payload_base64":"AP8="`} {
			require.Contains(t, lines[i], `,"name":"re load",`+want+"}")
		}
		var line struct {
			Time time.Time `json:"time"`
		}
		require.NoError(t, json.Unmarshal([]byte(lines[0]), &line))
		require.WithinDuration(t, time.Now(), line.Time, patience)
	})
}

// listen prints a notification of any program when its transaction has committed, with the wake trigger of init and without it.
func TestListenPrintsCommittedOnly(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, init := range [][]string{{"init"}, {"init", "--no-trigger"}} {
			config, db := database(t, s)
			succeed(t, config, init...)
			l := background(t, config, "listen", "orders", "--limit", "2")
			l.err.contains(t, "msg=listening")
			for _, payload := range []string{"first", "second"} {
				tx, err := db.BeginTx(t.Context(), nil)
				require.NoError(t, err)
				_, err = tx.ExecContext(t.Context(), "INSERT INTO mqnotify_notification (name, payload) VALUES ('orders', ?)", payload)
				require.NoError(t, err)
				<-time.After(100 * time.Millisecond) // the hint comes before the commit
				require.NotContains(t, l.out.String(), payload)
				begun := time.Now()
				require.NoError(t, tx.Commit())
				l.out.contains(t, " orders "+payload+"\n")
				require.Less(t, time.Since(begun), 30*time.Second, "%s: the wait has ended by itself", init)
			}
			require.Equal(t, exitDone, l.wait(t).code)
		}
	})
}

// Missed notifications cause a warning, and a member of the JSON.
func TestListenMissed(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC)
	missed := []notify.Notification{{Missed: true}, {ID: 7, Name: "n", Payload: []byte("x"), Time: now, Missed: true}, {ID: 8, Name: "n", Time: now}}
	for _, test := range []struct {
		options listenOptions
		want    string
	}{
		{listenOptions{limit: 1}, "2026-01-02T03:04:05.000006Z n x\n"},
		{listenOptions{json: true}, `{"missed":true}
{"time":"2026-01-02T03:04:05.000006Z","name":"n","payload":"x","missed":true}
{"time":"2026-01-02T03:04:05.000006Z","name":"n","payload":""}
`},
	} {
		var out, err text
		a := newApp(streams{out: &out, err: &err})
		notifications := make(chan notify.Notification, len(missed))
		for _, n := range missed {
			notifications <- n
		}
		close(notifications)
		require.NoError(t, a.receive(t.Context(), test.options, notifications, func(n notify.Notification) error {
			return a.printNotification(test.options, n)
		}))
		require.Equal(t, test.want, out.String())
		require.Equal(t, 2, strings.Count(err.String(), `level=WARN msg="notifications were missed"`), err.String())
	}
}

// The command runs for every notification, one at a time. A command that fails does not end listen.
func TestListenRunsCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		gate := filepath.Join(t.TempDir(), "gate")
		l := background(t, config, "listen", "jobs", "others", "--limit", "3", "--", "sh", "-c",
			"echo $0 $MQNOTIFY_NAME $MQNOTIFY_PAYLOAD; cat | sed s/^/stdin:/; echo; while ! [ -e "+gate+" ]; do sleep 0.05; done; exit 7", "run")
		l.err.contains(t, "msg=listening")
		succeed(t, config, "notify", "jobs", "one")
		l.out.contains(t, "run jobs one\nstdin:one\n")
		succeed(t, config, "notify", "others", "two") // waits while the command runs
		mysqltest.Exec(t, db, "INSERT INTO mqnotify_notification (name, payload) VALUES ('jobs', x'610062')")
		require.Equal(t, "run jobs one\nstdin:one\n", l.out.String())
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		r := l.wait(t)
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, "run jobs one\nstdin:one\nrun others two\nstdin:two\nrun jobs\nstdin:a\x00b\n", r.out)
		require.Equal(t, 3, strings.Count(r.err, `msg="the command failed" name=`), r.err)
		require.Contains(t, r.err, `error="sh: exit status 7"`)
	})
}

// After Ctrl-C the running command finishes.
func TestListenCommandInterrupted(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		gate := filepath.Join(t.TempDir(), "gate")
		l := background(t, config, "listen", "jobs", "--",
			"sh", "-c", "echo begun; while ! [ -e "+gate+" ]; do sleep 0.05; done; echo ended")
		l.err.contains(t, "msg=listening")
		succeed(t, config, "notify", "jobs")
		succeed(t, config, "notify", "jobs") // the command does not run for this one
		l.out.contains(t, "begun\n")
		l.stop()
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		require.Equal(t, "begun\nended\n", l.wait(t).out)
		require.Equal(t, exitDone, l.code)
	})
}

// A listener waits for a server that goes away, and so does a producer between two lines.
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
		_, err = io.WriteString(typed, "two\n")
		require.NoError(t, err)
		p.err.contains(t, "the server is away")
		own.Restart(t)
		succeed(t, config, "notify", "reload", "again")
		l.out.contains(t, " reload again\n")
		require.Equal(t, exitDone, l.interrupt(t).code)
		p.out.contains(t, "2\n")
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, p.wait(t).code)
		require.Equal(t, []string{"one", "two"}, mysqltest.Values[string](t, db, "SELECT payload FROM orders ORDER BY id"))

		// A command whose server does not answer at the start fails.
		own.Stop()
		for _, command := range []string{"listen reload", "notify reload", "produce orders x"} {
			require.Contains(t, fail(t, exitFailed, config, strings.Fields(command)...), "is the server running there?")
		}
	})
}
