package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The program contains the time zones for CRON_TZ, because a container may have no files of zones.
func TestZonesAreInTheProgram(t *testing.T) {
	program, err := os.Executable()
	require.NoError(t, err)
	text, err := os.ReadFile(program)
	require.NoError(t, err)
	found := strings.Contains(string(text), strings.Join([]string{"Africa", "Ouagadougou"}, "/"))
	require.True(t, found) // the program is too long to be printed
}

// A recurring task is stored and listed. A worker enters it when it is due, until it is removed.
func TestScheduleCommand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := queueDatabase(t, s)
		require.Equal(t, "no recurring tasks\n", succeed(t, config, "schedule", "mail"))
		require.Empty(t, succeed(t, config, "schedule", "mail", "--json"))
		succeed(t, config, "schedule", "mail", "nightly", "--cron", "0 3 * * *", "--priority", "-2", "--retries", "0", "--unique", "key", "a\x1b report")
		succeed(t, config, "schedule", "mail", "empty", "--cron", "@every 1h")

		lines := strings.Split(succeed(t, config, "schedule", "mail"), "\n")
		require.Equal(t, "NAME CRON NEXT PRIORITY RETRIES UNIQUE PAYLOAD", strings.Join(words(lines[0]), " "))
		require.Regexp(t, `^empty +@every 1h +\S+Z +0 +5 *$`, lines[1])
		require.Regexp(t, `^nightly +0 3 \* \* \* +\S+T03:00:00Z +-2 +0 +key +a. report$`, lines[2])
		require.NotContains(t, lines[2], "\x1b")
		type shown struct {
			Queue, Name, Cron, Unique, Payload string
			Next                               time.Time
			Priority, Retries                  int
		}
		var task shown
		out := strings.Split(succeed(t, config, "schedule", "mail", "--json"), "\n")
		require.NoError(t, json.Unmarshal([]byte(out[1]), &task))
		require.Equal(t, 3, task.Next.Hour())
		task.Next = time.Time{}
		require.Equal(t, shown{"mail", "nightly", "0 3 * * *", "key", "a\x1b report", time.Time{}, -2, 0}, task)

		// A second schedule of the same name replaces the task, and a sleeping worker learns of it.
		w := background(t, config, "work", "mail", "--", "cat")
		w.err.contains(t, "waiting for tasks")
		succeed(t, config, "schedule", "mail", "nightly", "--cron", "@every 1s", "tick\n")
		require.Eventually(t, func() bool { return strings.Count(w.out.String(), "tick") > 1 }, patience, 25*time.Millisecond)
		succeed(t, config, "schedule", "mail", "nightly", "--remove")
		require.Equal(t, exitDone, w.interrupt(t).code)
		require.Equal(t, []string{"empty"}, mysqltest.Values[string](t, db, "SELECT name FROM mqnotify_schedule"))

		message := fail(t, exitFailed, config, "schedule", "mail", "nightly", "--remove")
		require.Contains(t, message, `"mail": there is no recurring task "nightly": `+"`mqnotify schedule QUEUE` lists")
		require.Contains(t, fail(t, exitUsage, config, "schedule", "mail", "n", "--cron", "every day"), `Cron "every day": `)
		require.Contains(t, fail(t, exitUsage, config, "schedule", "mail", "n", "--cron", "0 0 31 2 *"), "never due")
		require.Contains(t, fail(t, exitUsage, config, "schedule", "mail", "", "--cron", "@daily"), "it is empty")
		for _, args := range [][]string{{}, {"n", "--cron", "@daily"}, {"n", "--remove"}} {
			message := fail(t, exitFailed, config, append([]string{"schedule", "nobody"}, args...)...)
			require.Contains(t, message, `the queue "nobody" does not exist: make it with `+"`mqnotify init --queue NAME`")
		}
	})
}
