//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A host's clock that is wrong by an hour changes nothing in what the commands do, because only the server's clock counts.
func TestCommandsWithAWrongClock(t *testing.T) {
	t.Parallel()
	mysqltest.NotShort(t, "guard.TestClockOff")
	for _, off := range mysqltest.Size([]time.Duration{time.Hour}, []time.Duration{time.Hour}, []time.Duration{time.Hour, -time.Hour}) {
		program := mysqltest.ProgramClockOff(t, off)
		t.Run(off.String(), func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) { wrongClock(t, s, program, off) })
		})
	}
}

func wrongClock(t *testing.T, s *mysqltest.Server, program string, off time.Duration) {
	config, db := database(t, s, "orders")
	succeed(t, config, "init", "--queue", "mail")
	begin := func(t *testing.T, args ...string) *process {
		t.Helper()
		p := &process{Cmd: exec.CommandContext(t.Context(), program, args...), ended: make(chan struct{})}
		p.Env = environment(t, config)
		p.Stdout, p.Stderr = &p.out, &p.err
		p.start(t)
		return p
	}
	wrong := func(args ...string) string {
		p := begin(t, args...)
		<-p.ended
		require.Zero(t, p.ProcessState.ExitCode(), "%q: %s", args, p.err.String())
		return p.out.String()
	}
	right := func(args ...string) string { return succeed(t, config, args...) }
	beginRight := func(t *testing.T, args ...string) *process { t.Helper(); return launch(t, config, nil, args...) }

	mysqltest.Exec(t, db, "INSERT INTO orders (payload, created_at) VALUES ('old', NOW(6) - INTERVAL 45 MINUTE), ('new', NOW(6))")
	mysqltest.Exec(t, db, "UPDATE orders SET created_at = created_at - INTERVAL 11 MINUTE WHERE payload = 'old'") // beyond the disorder that --from allows
	ago := begin(t, "consume", "orders", "--group", "g", "--from", "30m", "--stop-at-end", "--format", "payload", "--log-level", "debug")
	<-ago.ended
	require.Equal(t, "new\n", ago.out.String(), ago.err.String())
	stamp := regexp.MustCompile(`time=(\S+)`).FindStringSubmatch(ago.err.String())
	require.NotNil(t, stamp, ago.err.String())
	at, err := time.Parse(time.RFC3339, stamp[1])
	require.NoError(t, err)
	require.WithinDuration(t, time.Now().Add(off), at, off.Abs()/2, "the program's clock is off")
	require.Empty(t, wrong("consume", "orders", "--group", "g", "--stop-at-end"))

	for i, first := range []func(args ...string) string{right, wrong} {
		second := []func(args ...string) string{wrong, right}[i]
		key := fmt.Sprint("k", i)
		require.Equal(t, "ran\n", first("once", key, "--every", "30m", "--", "echo", "ran"))
		require.Empty(t, second("once", key, "--every", "30m", "--", "echo", "again"))
	}

	t.Run("locks", func(t *testing.T) {
		for _, kind := range []string{"advisory", "lease"} {
			for holder, begins := range map[string][]func(t *testing.T, args ...string) *process{
				"wrong": {begin, beginRight}, "right": {beginRight, begin},
			} {
				t.Run(kind+" of the "+holder, func(t *testing.T) {
					t.Parallel()
					holdsLonger(t, []string{"lock", kind + "-" + holder, "--kind", kind}, begins[0], begins[1])
				})
			}
		}
	})

	events := filepath.Join(t.TempDir(), "events")
	wrong("enqueue", "mail", "hour", "--delay", "59m")
	wrong("enqueue", "mail", "soon", "--delay", "1s")
	wrong("schedule", "mail", "often", "--cron", "@every 2s", "{}")
	for _, query := range []string{
		"SELECT ABS(TIMESTAMPDIFF(SECOND, state_at, UTC_TIMESTAMP(6) + INTERVAL 59 MINUTE)) FROM mqnotify_task WHERE payload = 'hour'",
		"SELECT ABS(TIMESTAMPDIFF(SECOND, next_at, UTC_TIMESTAMP(6))) FROM mqnotify_schedule",
	} {
		require.Less(t, mysqltest.Values[int](t, db, query)[0], 60, query)
	}
	// Each worker holds a task for longer than a claim lasts without renewal.
	job := []string{"--visibility", "15s", "--", "sh", "-c", "read p; echo \"$p $MQNOTIFY_ATTEMPT\" >>'" + events + "'; case $p in long*) sleep 17;; esac"}
	for _, payload := range []string{"long 1", "long 2"} {
		right("enqueue", "mail", payload)
	}
	worker := begin(t, append([]string{"work", "mail"}, job...)...)
	other := launch(t, config, nil, append([]string{"work", "mail"}, job...)...)
	require.Eventually(t, func() bool {
		return len(mysqltest.Values[int](t, db, "SELECT id FROM mqnotify_task WHERE state = 'done' AND (payload LIKE 'long%' OR payload = 'soon')")) == 3 &&
			strings.Count(read(t, events), "{}") > 1
	}, patience, 20*time.Millisecond)
	for _, p := range []*process{worker, other} {
		require.NoError(t, p.Process.Signal(os.Interrupt))
		<-p.ended
	}
	for _, line := range []string{"long 1 1\n", "long 2 1\n", "soon 1\n"} {
		require.Equal(t, 1, strings.Count(read(t, events), line), read(t, events))
	}
	require.NotContains(t, read(t, events), "long 1 2")
	require.NotContains(t, read(t, events), "long 2 2")
	require.NotContains(t, read(t, events), "hour")
	require.Less(t, strings.Count(read(t, events), "{}"), 600, "a due time is entered once")
}

// holdsLonger tests that a command that waits for a lock runs after the holder's, which takes longer than a lease lasts without renewal.
func holdsLonger(t *testing.T, lock []string, hold, wait func(t *testing.T, args ...string) *process) {
	t.Helper()
	if slices.Contains(lock, "lease") {
		lock = append(lock, "--ttl", "15s")
	}
	events := filepath.Join(t.TempDir(), "events")
	holder := hold(t, append(slices.Clone(lock), "--", "sh", "-c", "echo begins >>'"+events+"'; sleep 16; echo ends >>'"+events+"'")...)
	require.Eventually(t, func() bool { return read(t, events) == "begins\n" }, patience, 25*time.Millisecond)
	waiter := wait(t, append(slices.Clone(lock), "--", "sh", "-c", "echo then >>'"+events+"'")...)
	for _, p := range []*process{holder, waiter} {
		require.Zero(t, p.code(t), p.err.String())
	}
	require.Equal(t, "begins\nends\nthen\n", read(t, events))
}

// read returns the text of a file, or "" if there is none.
func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if !os.IsNotExist(err) {
		require.NoError(t, err)
	}
	return string(text)
}
