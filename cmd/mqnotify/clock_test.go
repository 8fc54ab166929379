//go:build unix

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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
	begin := func(args ...string) *process {
		p := &process{Cmd: exec.CommandContext(t.Context(), program, args...), ended: make(chan struct{})}
		p.Env = environment(t, config)
		p.Stdout, p.Stderr = &p.out, &p.err
		p.start(t)
		return p
	}
	wrong := func(args ...string) string {
		p := begin(args...)
		<-p.ended
		require.Zero(t, p.ProcessState.ExitCode(), "%q: %s", args, p.err.String())
		return p.out.String()
	}
	right := func(args ...string) string { return succeed(t, config, args...) }

	mysqltest.Exec(t, db, "INSERT INTO orders (payload, created_at) VALUES ('old', NOW(6) - INTERVAL 45 MINUTE), ('new', NOW(6))")
	mysqltest.Exec(t, db, "UPDATE orders SET created_at = created_at - INTERVAL 11 MINUTE WHERE payload = 'old'") // beyond the disorder that --from allows
	ago := begin("consume", "orders", "--group", "g", "--from", "30m", "--stop-at-end", "--format", "payload", "--log-level", "debug")
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

	events := filepath.Join(t.TempDir(), "events")
	read := func() string {
		text, err := os.ReadFile(events)
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return string(text)
	}
	holds := []string{"--", "sh", "-c", "echo begins >>'" + events + "'; sleep 16; echo ends >>'" + events + "'"} // longer than the lease
	then := []string{"--", "sh", "-c", "echo then >>'" + events + "'"}
	for _, kind := range []string{"advisory", "lease"} {
		for _, wrongHolds := range []bool{true, false} {
			require.NoError(t, os.RemoveAll(events))
			lock := []string{"lock", "x", "--kind", kind}
			if kind == "lease" {
				lock = append(lock, "--ttl", "15s")
			}
			var holder *process
			if wrongHolds {
				holder = begin(append(lock, holds...)...)
			} else {
				holder = launch(t, config, nil, append(lock, holds...)...)
			}
			require.Eventually(t, func() bool { return read() == "begins\n" }, patience, 25*time.Millisecond)
			if wrongHolds {
				right(append(lock, then...)...)
			} else {
				wrong(append(lock, then...)...)
			}
			require.Equal(t, "begins\nends\nthen\n", read(), "%s, held by the wrong clock: %t", kind, wrongHolds)
			<-holder.ended
			require.Zero(t, holder.ProcessState.ExitCode(), holder.err.String())
		}
	}

	require.NoError(t, os.RemoveAll(events))
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
	worker := begin(append([]string{"work", "mail"}, job...)...)
	other := launch(t, config, nil, append([]string{"work", "mail"}, job...)...)
	require.Eventually(t, func() bool {
		return len(mysqltest.Values[int](t, db, "SELECT id FROM mqnotify_task WHERE state = 'done' AND (payload LIKE 'long%' OR payload = 'soon')")) == 3 &&
			strings.Count(read(), "{}") > 1
	}, patience, 20*time.Millisecond)
	for _, p := range []*process{worker, other} {
		require.NoError(t, p.Process.Signal(os.Interrupt))
		<-p.ended
	}
	for _, line := range []string{"long 1 1\n", "long 2 1\n", "soon 1\n"} {
		require.Equal(t, 1, strings.Count(read(), line), read())
	}
	require.NotContains(t, read(), "long 1 2")
	require.NotContains(t, read(), "long 2 2")
	require.NotContains(t, read(), "hour")
	require.Less(t, strings.Count(read(), "{}"), 600, "a due time is entered once")
}
