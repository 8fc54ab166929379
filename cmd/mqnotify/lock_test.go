package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

var lockKinds = []string{kindAdvisory, kindLease}

// A command under a lock has the same exit code, streams and environment as without it, and the variables of the lock.
func TestLockRuns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		for _, kind := range lockKinds {
			r := mqnotify(t, config, "typed", "lock", "a 'name' ☃", "--kind", kind, "--", "sh", "-c",
				`cat; echo " $0 $MQNOTIFY_LOCK $MQNOTIFY_TOKEN"; echo said >&2; exit 42`, "zero")
			require.Equal(t, 42, r.code)
			token := map[string]string{kindAdvisory: "", kindLease: "1"}[kind]
			require.Equal(t, "typed zero a 'name' ☃ "+token+"\n", r.out)
			require.Equal(t, "said\n", r.err)
			require.Equal(t, 128+15, mqnotify(t, config, "", "lock", "x", "--kind", kind, "--", "sh", "-c", "kill $$").code)
			require.Empty(t, succeed(t, config, "lock", "x", "--kind", kind, "--timeout", "0s", "--", "true"))
		}
	})
}

// One command at a time runs under a lock of either kind. A command that does not get the lock does not run, and mqnotify exits
// with 75 or with the given code.
func TestLockHeld(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		for _, kind := range mysqltest.Some(t, lockKinds) {
			t.Run(kind, func(t *testing.T) {
				t.Parallel()
				lock := func(args ...string) []string {
					return append([]string{"lock", "report", "--kind", kind}, args...)
				}
				first := background(t, config, lock("--", "sh", "-c", "echo has it; exec sleep 1000")...)
				first.out.contains(t, "has it\n")
				for _, timeout := range []string{"0s", mysqltest.Size("5s", "15s", "15s")} { // a busy machine needs time to connect first
					args := lock("--timeout", timeout, "--", "echo", "ran")
					other := background(t, config, append([]string{"lock", "-E", "7"}, args[1:]...)...)
					r := mqnotify(t, config, "", args...)
					require.Equal(t, exitNotGot, r.code, r.err)
					require.Empty(t, r.out)
					require.Contains(t, r.err, "another session holds the lock")
					require.Equal(t, 7, other.wait(t).code)
				}
				succeed(t, config, "lock", "another", "--kind", kind, "--timeout", "0s", "--", "true")
				interrupted := background(t, config, lock("--", "echo", "ran")...)
				second := background(t, config, lock("--", "echo", "ran")...)
				require.Equal(t, exitFailed, interrupted.interrupt(t).code, "the command was not run")
				r := first.interrupt(t)
				require.Equal(t, 128+15, r.code, "SIGTERM ended the command")
				require.Equal(t, result{exitDone, "ran\n", ""}, second.wait(t))
			})
		}
	})
}

// If the server is away or does not answer, the command fails, because it is unknown whether the lock is held.
func TestLockServerAway(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		proxy := s.Proxy(t)
		through := proxy.Config(config)
		for _, kind := range lockKinds {
			lock := func(timeout, notGot string) []string {
				return []string{"lock", "x", "--kind", kind, "-E", notGot, "--timeout", timeout, "--", "echo", "ran"}
			}
			proxy.Down()
			message := fail(t, exitFailed, through, lock("30s", "0")...)
			require.Contains(t, message, "refused")
			require.Contains(t, message, "is the server running there?")
			proxy.Up()
			proxy.Freeze()
			require.Contains(t, fail(t, exitFailed, through, lock("500ms", "0")...), "no answer within --timeout 500ms")
			proxy.Thaw()
			require.Equal(t, "ran\n", succeed(t, through, lock("30s", "1")...))
		}
	})
}

// A command whose lock is lost gets SIGTERM. If it then exits with 0, mqnotify exits with its own error.
func TestLockLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		lose := map[string]func(name string){
			kindAdvisory: func(name string) {
				mysqltest.Exec(t, db, "KILL "+mysqltest.Values[string](t, db, "SELECT IS_USED_LOCK(?)", core.LockName("mutex", config.DBName, name))[0])
			},
			kindLease: func(name string) {
				mysqltest.Exec(t, db, "UPDATE mqnotify_lease SET token = token + 1 WHERE name = ?", name)
			},
		}
		codes := map[string]int{
			"echo has it; exec sleep 1000":                                   128 + 15,
			"trap 'echo asked; exit 3' TERM; echo has it; sleep 1000 & wait": 3,
			"trap 'echo asked; exit 0' TERM; echo has it; sleep 1000 & wait": exitFailed,
		}
		for _, kind := range lockKinds {
			all := map[string]*running{}
			for script := range codes {
				args := []string{"lock", script, "--kind", kind}
				if kind == kindLease {
					args = append(args, "--ttl", mysqltest.Size("15s", "30s", "30s")) // a tenth of the ttl passes between SIGTERM and SIGKILL
				}
				all[script] = background(t, config, append(args, "--", "sh", "-c", script)...)
			}
			for script, l := range all {
				l.out.contains(t, "has it\n")
				lose[kind](script)
			}
			for script, l := range all {
				r := l.wait(t)
				require.Equal(t, codes[script], r.code, "%s %s", kind, r.err)
				require.Equal(t, strings.Contains(script, "trap"), strings.Contains(r.out, "asked\n"))
				require.Contains(t, r.err, "the lock is lost")
			}
		}
	})
}

// If a lease cannot be renewed, its command has ended before another command has the lease, even if it ignores SIGTERM.
func TestLockCutOff(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		proxy := s.Proxy(t)
		file := filepath.Join(t.TempDir(), "lines")
		ttl := mysqltest.Size("4s", "30s", "30s") // a fifteenth of it is left for the kill
		lock := []string{"lock", "x", "--kind", "lease", "--ttl", ttl, "--", "sh", "-c"}
		cut := background(t, proxy.Config(config), append(lock, "trap '' TERM; echo $$; while :; do echo first >> "+file+"; sleep 0.05; done")...)
		cut.out.contains(t, "\n")
		proxy.Down()
		if testing.Short() { // a short ttl leaves too little time between the end of one and the start of the other
			requireGone(t, words(cut.out.String())[0])
		}
		succeed(t, config, append(lock, "echo second >> "+file+"; while kill -0 "+words(cut.out.String())[0]+"; do sleep 0.05; done")...)
		require.Equal(t, 128+9, cut.wait(t).code)
		lines := linesOf(t, file)
		require.Equal(t, "second", lines[len(lines)-1], "the first command ran while the second held the lock")
	})
}

// once runs the command once per key, or once per interval. A command that fails counts as run.
func TestOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		r := mqnotify(t, config, "typed", "once", "k", "--", "sh", "-c", `cat; echo " $MQNOTIFY_KEY"; exit 3`)
		require.Equal(t, result{3, "typed k\n", ""}, r)
		r = mqnotify(t, config, "", "once", "k", "--", "echo", "ran")
		require.Equal(t, exitDone, r.code)
		require.Empty(t, r.out)
		require.Contains(t, r.err, "done already")
		require.Equal(t, 9, mqnotify(t, config, "", "once", "k", "-E", "9", "--", "echo", "ran").code)
		require.Empty(t, succeed(t, config, "once", "k", "--reset"))
		require.Equal(t, "ran\n", succeed(t, config, "once", "k", "--", "echo", "ran"))
		require.Contains(t, mqnotify(t, config, "", "once", "new", "--reset").err, "nothing to reset")

		daily := []string{"once", "daily", "--every", "day", "--tz", noonZone(t, db), "--", "echo", "ran"}
		require.Equal(t, "ran\n", succeed(t, config, daily...))
		require.Empty(t, succeed(t, config, daily...))
		mysqltest.Exec(t, db, "UPDATE mqnotify_interval SET taken_at = taken_at - INTERVAL 18 HOUR")
		require.Equal(t, "ran\n", succeed(t, config, daily...))
		for message, args := range map[string][]string{
			"unknown time zone":          {"--every", "day", "--tz", "Nowhere/None"},
			"--tz is for calendar":       {"--every", "23h", "--tz", "UTC"},
			"hour, day, week, month, or": {"--every", "year"},
		} {
			require.Contains(t, fail(t, exitUsage, config, append(append([]string{"once", "k"}, args...), "--", "echo", "ran")...), message)
		}

		every := []string{"once", "nightly", "--every", "23h", "--", "echo", "ran"}
		require.Equal(t, "ran\n", succeed(t, config, every...))
		require.Empty(t, succeed(t, config, every...))
		mysqltest.Exec(t, db, "UPDATE mqnotify_interval SET taken_at = taken_at - INTERVAL 23 HOUR")
		require.Equal(t, "ran\n", succeed(t, config, every...))
		require.Equal(t, "ran\n", succeed(t, config, "once", "nightly", "--", "echo", "ran"), "a key without an interval is another key")
	})
}

// noonZone returns a time zone in which it is between 6 and 18 o'clock.
func noonZone(tb testing.TB, db *sqlx.DB) string {
	tb.Helper()
	hour := mysqltest.Value[int](tb, db, "SELECT HOUR(UTC_TIME())")
	if hour >= 6 && hour < 18 {
		return "UTC"
	}
	return "Etc/GMT+12" // 12 hours behind UTC
}

func TestLockFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		succeed(t, config, "lock", "x", "--", "true")
		for _, args := range [][]string{{"lock", "x", "--kind", "lease"}, {"once", "x"}, {"once", "x", "--every", "1h"}} {
			message := fail(t, exitFailed, config, append(args, "--", "echo", "ran")...)
			require.Contains(t, message, "mqnotify init")
		}
		config, _ = database(t, s)
		reader := s.User(t, config, "SELECT ON "+config.DBName+".*")
		message := fail(t, exitFailed, reader, "once", "x", "--", "echo", "ran")
		require.Equal(t, 1, strings.Count(message, "mqnotify grants"), message)
		require.Contains(t, fail(t, exitFailed, config, "lock", "x", "--", "no-such-command"), "no-such-command")
		require.Contains(t, fail(t, exitFailed, config, "once", "x", "--", "no-such-command"), "no-such-command")
		require.Equal(t, "ran\n", succeed(t, config, "once", "x", "--", "echo", "ran"), "the key was not used up")
	})
}

// Commands under one lock increment a file in two steps, and no two do so at the same time. Of several commands with one key,
// once runs one.
func TestLockExcludes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		many := func(args ...string) {
			t.Helper()
			var all []*running
			for range 6 {
				all = append(all, background(t, config, args...))
			}
			for _, r := range all {
				require.Equal(t, exitDone, r.wait(t).code, r.err.String())
			}
		}
		for _, kind := range lockKinds {
			file := filepath.Join(t.TempDir(), "count")
			require.NoError(t, os.WriteFile(file, []byte("0\n"), 0o600))
			many("lock", "count", "--kind", kind, "--", "sh", "-c", "n=$(cat "+file+"); sleep 0.02; echo $((n+1)) > "+file)
			require.Equal(t, []string{"6"}, linesOf(t, file))
		}
		file := filepath.Join(t.TempDir(), "once")
		many("once", "k", "--", "sh", "-c", "echo ran >> "+file)
		many("once", "k", "--every", "1h", "--", "sh", "-c", "echo ran >> "+file)
		require.Equal(t, []string{"ran", "ran"}, linesOf(t, file))
	})
}
