package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A command gets the payload on stdin and the other values in its environment.
func TestConsumeRunsCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "pay\nload", "--header", "content-type=text/plain", "--header", "ä=b")
		out := succeed(t, config, "consume", "orders", "--group", "g", "--from", "beginning", "--limit", "1", "--", "sh", "-c",
			`cat; echo; echo "$0 $1"; env | grep ^MQNOTIFY_ | grep -v DSN | sort`, "zero", "--one")
		lines := strings.Split(out, "\n")
		require.Equal(t, []string{"pay", "load", "zero --one"}, lines[:3])
		require.Regexp(t, `^MQNOTIFY_CREATED_AT=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$`, lines[3])
		require.Equal(t, []string{
			`MQNOTIFY_HEADERS={"content-type":"text/plain","ä":"b"}`,
			"MQNOTIFY_HEADER_CONTENT_TYPE=text/plain", "MQNOTIFY_HEADER__=b", "MQNOTIFY_ID=1", "MQNOTIFY_TOPIC=orders", "",
		}, lines[4:])
		require.Equal(t, []string{"1"}, mysqltest.Values[string](t, db, "SELECT settled FROM mqnotify_offset"))
	})
}

// The offset moves when the command exits with 0. A message whose command fails too often becomes a dead letter, and the
// messages after it follow.
func TestConsumeCommandFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		tries := filepath.Join(t.TempDir(), "tries")
		script := `p=$(cat); echo $p >> ` + tries + `; [ $p != bad ] || { echo broken >&2; exit 3; }`
		succeed(t, config, "produce", "orders", "one", "bad", "two")
		group := []string{"consume", "orders", "--from", "beginning", "--stop-at-end", "--attempts", "2"}
		r := mqnotify(t, config, "", append(group, "--group", "g", "--", "sh", "-c", script)...)
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.err, "broken\n")
		require.Equal(t, []string{"one", "bad", "bad", "two"}, linesOf(t, tries))
		require.Equal(t, []string{"2 bad 2 sh: exit status 3: broken"},
			mysqltest.Values[string](t, db, "SELECT CONCAT_WS(' ', message_id, payload, attempts, error) FROM mqnotify_dead_letter"))

		// Without a group there are no dead letters.
		require.Contains(t, fail(t, exitFailed, config, append(group, "--", "sh", "-c", script)...), "message 2 of orders failed 2 times")
		require.Equal(t, []string{"one", "bad", "bad"}, linesOf(t, tries)[4:])
	})
}

// A failure's text has the end of the command's stderr, without the password.
func TestEndOfStderr(t *testing.T) {
	var out text
	a := newApp(streams{out: &out, err: &out, environ: []string{envDSN + "=me:secret word@tcp(h:1)/db"}})
	_, err := a.config()
	require.NoError(t, err)
	a.inheritDSN = true
	run := func(script string) string {
		t.Helper()
		err := (&command{[]string{"sh", "-c", script}, killAfter, a}).run(t.Context(), nil, nil)
		require.Error(t, err)
		return err.Error()
	}
	require.Equal(t, "sh: exit status 3: no more paper", run("echo no more paper >&2; exit 3"))
	require.Equal(t, "sh: exit status 3", run("exit 3"))
	said := run(`for i in 1 2 3 4 5 6 7 8 9; do printf '%s %01000d' "$` + envDSN + `" "$i" >&2; done; exit 3`)
	require.Less(t, len(said), mostWords+100)
	require.Greater(t, len(said), mostWords)
	require.Contains(t, said, "me:***@tcp(h:1)/db")
	require.NotContains(t, said, "secret")
	require.NotContains(t, said, "word")
}

// A command that hangs gets SIGTERM first, and all that it has started ends with it.
func TestConsumeCommandHangs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "one")
		r := mqnotify(t, config, "", "consume", "orders", "--group", "g", "--from", "beginning", "--stop-at-end",
			"--attempts", "1", "--timeout", "10s", "--", "sh", "-c", "trap 'echo asked; exit 0' TERM; sleep 1000 & wait")
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, "asked\n", r.out)
		require.Contains(t, mysqltest.Values[string](t, db, "SELECT error FROM mqnotify_dead_letter")[0], "took longer than 10s")
	})
}

// A command that ignores SIGTERM is killed, and so is all that it has started.
func TestCommandKilled(t *testing.T) {
	t.Parallel()
	pids := filepath.Join(t.TempDir(), "pids")
	var out text
	a := newApp(streams{out: &out, err: &out, environ: os.Environ()})
	run := &command{[]string{"sh", "-c", `trap '' TERM; sleep 1000 & echo $! > ` + pids + `; wait; wait`}, 100 * time.Millisecond, a}
	ctx, cancel := context.WithCancel(t.Context())
	handled := make(chan error, 1)
	go func() { handled <- run.handle(ctx, consumer.Message{ID: 1, Payload: make([]byte, 1<<20)}) }()
	require.Eventually(t, func() bool { text, err := os.ReadFile(pids); return err == nil && len(text) > 1 }, patience, 25*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-handled, context.Canceled)
	requireGone(t, linesOf(t, pids)[0])
}

// A command that exits with 0 has succeeded, even if its time to end is short, and if a process outside its group still has its
// stdout open.
func TestCommandLeavesAChild(t *testing.T) {
	t.Parallel()
	var out text
	a := newApp(streams{out: &out, err: &out, environ: os.Environ()})
	run := &command{[]string{"sh", "-c", "setsid sleep 6 & echo done"}, time.Millisecond, a}
	require.NoError(t, run.handle(t.Context(), consumer.Message{ID: 1}))
	require.Equal(t, "done\n", out.String())
}

// After Ctrl-C the running command finishes, and its message is stored as handled.
func TestConsumeCommandInterrupted(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "one", "two")
		gate := filepath.Join(t.TempDir(), "gate")
		c := background(t, config, "consume", "orders", "--group", "g", "--from", "beginning", "--",
			"sh", "-c", "echo begun; while ! [ -e "+gate+" ]; do sleep 0.05; done; echo ended")
		c.out.contains(t, "begun\n")
		c.stop()
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		r := c.wait(t)
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, "begun\nended\n", r.out)
		require.Equal(t, []string{"1"}, mysqltest.Values[string](t, db, "SELECT settled + LENGTH(delivered) * 0 FROM mqnotify_offset"))
	})
}

func TestMessageVariables(t *testing.T) {
	variables, err := messageVariables(consumer.Message{ID: 7, Topic: "t", Headers: map[string]string{"nul": "a\x00b", "A.b": "c"}})
	require.NoError(t, err)
	require.Equal(t, []string{"MQNOTIFY_ID=7", "MQNOTIFY_TOPIC=t", `MQNOTIFY_HEADERS={"A.b":"c","nul":"a\u0000b"}`, "MQNOTIFY_HEADER_A_B=c"}, variables)
}

func linesOf(tb testing.TB, file string) []string {
	tb.Helper()
	text, err := os.ReadFile(file)
	require.NoError(tb, err)
	return words(string(text))
}
