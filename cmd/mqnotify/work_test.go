package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// queueDatabase makes a database with the queue mail.
func queueDatabase(tb testing.TB, s *mysqltest.Server, flags ...string) (*mysql.Config, *sqlx.DB) {
	tb.Helper()
	config, db := database(tb, s)
	succeed(tb, config, append([]string{"init", "--queue", "mail"}, flags...)...)
	return config, db
}

// states waits until the tasks have these states, in the order of their ids.
func states(tb testing.TB, db *sqlx.DB, want ...string) {
	tb.Helper()
	require.Eventually(tb, func() bool {
		now := mysqltest.Values[string](tb, db, "SELECT state FROM mqnotify_task ORDER BY id")
		return strings.Join(now, ",") == strings.Join(want, ",")
	}, patience, 25*time.Millisecond, "want %v", want)
}

// A task's command gets the payload on stdin and the other values in its environment. Its exit code decides the state of the
// task.
func TestWorkRunsCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		require.Equal(t, "1\n2\n", succeed(t, config, "enqueue", "mail", "pay\nload", "", "--print-ids"))
		require.Equal(t, "3\n", succeed(t, config, "enqueue", "mail", "bad", "--unique", "a key", "--retries", "1", "--print-ids"))
		require.Equal(t, "0\n", succeed(t, config, "enqueue", "mail", "bad", "--unique", "a key", "--print-ids"))
		w := background(t, config, "work", "mail", "--backoff", "20ms", "--", "sh", "-c",
			`p=$(cat); echo "$p $MQNOTIFY_TASK_ID $MQNOTIFY_QUEUE $MQNOTIFY_ATTEMPT $MQNOTIFY_RETRIES $MQNOTIFY_UNIQUE $0"; [ "$p" != bad ] || exit 3`, "zero")
		states(t, db, "done", "done", "dead")
		r := w.interrupt(t)
		require.Equal(t, exitDone, r.code, r.err)
		require.Equal(t, "pay\nload 1 mail 1 5  zero\n 2 mail 1 5  zero\nbad 3 mail 1 1 a key zero\nbad 3 mail 2 0 a key zero\n", r.out)
		require.Contains(t, r.err, "done=2 failed=1 dead=1 lost=0 retried_transactions=")
		require.Equal(t, []string{"sh: exit status 3"}, mysqltest.Values[string](t, db, "SELECT last_error FROM mqnotify_task WHERE state = 'dead'"))
	})
}

// enqueue makes a task of every line of stdin as soon as the line comes.
func TestEnqueueStdin(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		in, typed := io.Pipe()
		e := start(t, environment(t, config), in, "enqueue", "mail", "--priority", "3", "--retries", "0", "--print-ids")
		_, err := io.WriteString(typed, "one\r\n")
		require.NoError(t, err)
		e.out.contains(t, "1\n")
		_, err = io.WriteString(typed, "two\nthree")
		require.NoError(t, err)
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, e.wait(t).code)
		require.Equal(t, []string{"one\r 3 0 ready", "two 3 0 ready", "three 3 0 ready"},
			mysqltest.Values[string](t, db, "SELECT CONCAT_WS(' ', payload, priority, retries, state) FROM mqnotify_task ORDER BY id"))

		succeed(t, config, "enqueue", "mail", "later", "--delay", "1h")
		succeed(t, config, "enqueue", "mail", "then", "--at", "2031-05-01T10:00:00+02:00")
		require.Equal(t, []string{"1", "1"}, mysqltest.Values[string](t, db, "SELECT ABS(TIMESTAMPDIFF(SECOND, UTC_TIMESTAMP() + INTERVAL 1 HOUR, state_at)) < 60"+
			" OR state_at = '2031-05-01 08:00:00' FROM mqnotify_task WHERE state = 'scheduled'"))
	})
}

// Several commands run at the same time, each for a task of its own.
func TestWorkConcurrency(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		dir := t.TempDir()
		w := background(t, config, "work", "mail", "--concurrency", "3", "--", "sh", "-c",
			`set -e; mkdir `+dir+`/$MQNOTIFY_TASK_ID; while [ $(ls `+dir+` | wc -l) -lt 3 ]; do sleep 0.05; done`)
		succeed(t, config, "enqueue", "mail", "1", "2", "3")
		states(t, db, "done", "done", "done") // every command waits for the others
		require.Equal(t, exitDone, w.interrupt(t).code)
	})
}

// The command of a cancelled task is ended, with all that it has started. After Ctrl-C the running command finishes.
func TestWorkEnds(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		gate, pids := filepath.Join(t.TempDir(), "gate"), filepath.Join(t.TempDir(), "pids")
		// A twentieth of the visibility passes between SIGTERM and SIGKILL.
		w := background(t, config, "work", "mail", "--visibility", mysqltest.Size("15s", "40s", "40s"), "--", "sh", "-c",
			`p=$(cat); [ $p = hangs ] || { echo begun $p; while ! [ -e `+gate+` ]; do sleep 0.05; done; echo ended; exit 0; }
			trap 'echo asked; exit 0' TERM; sleep 1000 & echo $! > `+pids+`; echo begun $p; wait`)
		succeed(t, config, "enqueue", "mail", "hangs")
		w.out.contains(t, "begun hangs\n")
		require.Equal(t, "1\n", succeed(t, config, "tasks", "mail", "--cancel", "1"))
		w.out.contains(t, "asked\n")
		states(t, db, "dead")
		requireGone(t, linesOf(t, pids)[0])

		succeed(t, config, "enqueue", "mail", "finishes")
		w.out.contains(t, "begun finishes\n")
		w.stop()
		require.NoError(t, os.WriteFile(gate, nil, 0o600))
		require.Equal(t, exitDone, w.wait(t).code)
		require.Contains(t, w.out.String(), "ended\n")
		states(t, db, "dead", "done")
	})
}

// When a worker is killed, another one gets its task, and all that its command has started ends.
func TestWorkKilled(t *testing.T) {
	mysqltest.NotShort(t, "queue.TestCutOff and TestLockKilled")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		succeed(t, config, "enqueue", "mail", "x")
		args := []string{"work", "mail", "--visibility", "1h", "--", "sh", "-c", "trap '' TERM; sh -c 'echo $$; exec sleep 1000' & wait; wait"}
		p := launch(t, config, nil, args...)
		p.out.contains(t, "\n")
		p.signal(t, os.Kill)
		requireGone(t, words(p.out.String())[0])
		mysqltest.Exec(t, db, "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND") // the claim lapses
		other := launch(t, config, nil, args...)
		other.out.contains(t, "\n")
		other.signal(t, os.Kill)
		<-other.ended
	})
}

// The command of a worker that has lost its connection has ended before another worker has the task, even if it ignores
// SIGTERM.
func TestWorkCutOff(t *testing.T) {
	mysqltest.NotShort(t, "queue.TestCutOff")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		proxy := s.Proxy(t)
		file := filepath.Join(t.TempDir(), "lines")
		visibility := mysqltest.Size("4s", "30s", "30s")
		cut := background(t, proxy.Config(config), "work", "mail", "--visibility", visibility, "--", "sh", "-c",
			`trap '' TERM; echo $$; while :; do echo first >> `+file+`; sleep 0.05; done`)
		succeed(t, config, "enqueue", "mail", "x")
		cut.out.contains(t, "\n")
		proxy.Down()
		if testing.Short() { // a short claim leaves too little time between the end of one and the start of the other
			requireGone(t, words(cut.out.String())[0])
		}
		other := background(t, config, "work", "mail", "--", "sh", "-c", "echo second >> "+file)
		states(t, db, "done")
		requireGone(t, words(cut.out.String())[0])
		lines := linesOf(t, file)
		require.Equal(t, "second", lines[len(lines)-1], "the first command ran while the second had the task")
		require.Equal(t, exitDone, other.interrupt(t).code)
		proxy.Up()
		require.Equal(t, exitDone, cut.interrupt(t).code)
	})
}

// tasks lists, retries, cancels, counts and prunes tasks.
func TestTasks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		require.Equal(t, "no tasks\n", succeed(t, config, "tasks", "mail"))
		succeed(t, config, "enqueue", "mail", "one\n\x1b[31m two", "--retries", "0")
		succeed(t, config, "enqueue", "mail", "later", "--delay", "1h", "--priority", "-7")
		w := background(t, config, "work", "mail", "--", "sh", "-c", "exit 4")
		states(t, db, "dead", "scheduled")
		require.Equal(t, exitDone, w.interrupt(t).code)

		lines := strings.Split(succeed(t, config, "tasks", "mail"), "\n")
		require.Equal(t, "ID STATE PRIORITY ATTEMPTS RETRIES LAPSES AT OWNER PAYLOAD ERROR", strings.Join(words(lines[0]), " "))
		require.Regexp(t, `^1 +dead +0 +1 +0 +0 +\S+Z +\S+ +one .\[31m two +sh: exit status 4$`, lines[1])
		require.Regexp(t, `^2 +scheduled +-7 +0 +5 +0 +\S+Z +later *$`, lines[2])
		require.NotContains(t, lines[1], "\x1b")

		var task struct {
			ID                    int
			State, Payload, Error string
			At                    time.Time
		}
		require.NoError(t, json.Unmarshal([]byte(succeed(t, config, "tasks", "mail", "--json", "--state", "dead")), &task))
		require.Equal(t, "one\n\x1b[31m two dead sh: exit status 4", fmt.Sprint(task.Payload, " ", task.State, " ", task.Error))
		require.False(t, task.At.IsZero())
		mysqltest.Exec(t, db, "UPDATE mqnotify_task SET payload = x'ff00' WHERE id = 2")
		require.Contains(t, succeed(t, config, "tasks", "mail", "--json"), `"payload_base64":"/wA="`)
		require.Contains(t, succeed(t, config, "tasks", "mail", "--limit", "1"), "there may be more: --after 1\n")

		require.Equal(t, `{"dead":1,"done":0,"failed":0,"in progress":0,"ready":0,"scheduled":1}`+"\n", succeed(t, config, "tasks", "mail", "--count", "--json"))
		require.Contains(t, succeed(t, config, "tasks", "mail", "--count"), "dead         1\n")
		require.Equal(t, "2\n", succeed(t, config, "tasks", "mail", "--retry", "1,2,3"))
		states(t, db, "ready", "ready")
		require.Equal(t, "1\n", succeed(t, config, "tasks", "mail", "--cancel", "2"))
		require.Equal(t, "1\n", succeed(t, config, "tasks", "mail", "--retry-dead", "--retries", "0"))
		require.Equal(t, []string{"5", "0"}, mysqltest.Values[string](t, db, "SELECT retries FROM mqnotify_task ORDER BY id"))
		w = background(t, config, "work", "mail", "--", "true")
		states(t, db, "done", "done")
		require.Equal(t, exitDone, w.interrupt(t).code)
		require.Equal(t, "0\n", succeed(t, config, "tasks", "mail", "--prune", "1h"))
		require.Equal(t, "2\n", succeed(t, config, "tasks", "mail", "--prune", "0s", "--dead"))
	})
}

// The command line keeps the order of an ordered queue.
func TestInitQueue(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s, "--ordered")
		succeed(t, config, "init", "--queue", "mail", "--queue", "other", "--ordered")
		require.Contains(t, fail(t, exitUsage, config, "init", "--queue", "mail"), "is ordered")
		require.Contains(t, fail(t, exitUsage, config, "enqueue", "mail", "x", "--delay", "1s"), "ordered queue")
		require.Contains(t, fail(t, exitUsage, config, "work", "mail", "--visibility", "1ms", "--", "true"), "Visibility 1ms: from 100ms")
		w := background(t, config, "work", "mail", "--concurrency", "4", "--", "sh", "-c", `echo $(cat); sleep 0.05`)
		succeed(t, config, "enqueue", "mail", "1", "2", "3", "4")
		states(t, db, "done", "done", "done", "done")
		require.Equal(t, "1\n2\n3\n4\n", w.interrupt(t).out)
	})
}

// The error for a missing queue says how to make it.
func TestNoQueue(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		for _, line := range []string{
			"enqueue nobody x", "work nobody -- true", "tasks nobody", "tasks nobody --prune 1h",
			"tasks nobody --retry 1", "tasks nobody --retry-dead", "tasks nobody --cancel 1", "tasks nobody --count",
		} {
			message := fail(t, exitFailed, config, strings.Fields(line)...)
			require.Contains(t, message, `the queue "nobody" does not exist: make it with `+"`mqnotify init --queue NAME`", line)
		}
		empty := s.Database(t)
		require.Contains(t, fail(t, exitFailed, empty, "enqueue", "mail", "x"), "mqnotify init")
		require.Contains(t, fail(t, exitFailed, config, "work", "mail", "--", "no-such-command"), "no-such-command")
	})
}

// A command that hangs is ended after --timeout and counts as failed. The next task then runs.
func TestWorkCommandHangs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		succeed(t, config, "enqueue", "mail", "hangs", "--retries", "0")
		succeed(t, config, "enqueue", "mail", "goes")
		w := background(t, config, "work", "mail", "--timeout", "10s", "--", "sh", "-c",
			`trap 'echo asked; exit 0' TERM; [ $(cat) = goes ] && exit; sleep 1000 & wait`)
		w.out.contains(t, "asked\n")
		states(t, db, "dead", "done")
		require.Contains(t, mysqltest.Values[string](t, db, "SELECT last_error FROM mqnotify_task WHERE state = 'dead'")[0], "took longer than 10s")
		require.Equal(t, exitDone, w.interrupt(t).code)
	})
}

// An idle worker keeps the two connections that wait, and no other.
func TestWorkConnections(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		w := background(t, config, "work", "mail", "--", "true")
		succeed(t, config, "enqueue", "mail", "x")
		states(t, db, "done")
		mysqltest.Eventually(t, "only the two connections that wait are left", func() bool {
			return mysqltest.Value[int](t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()") == 2
		})
		require.Equal(t, exitDone, w.interrupt(t).code)
	})
}
