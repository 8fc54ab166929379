//go:build unix

package main

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// mqnotify forwards its signals to the command. Only the command's end ends mqnotify, with the exit code of the command.
func TestLockPassesSignalsOn(t *testing.T) {
	type ending struct {
		trap   string
		signal syscall.Signal
		args   []string
	}
	mysqltest.EachCase(t, []ending{
		{"INT", syscall.SIGINT, []string{"lock", "x", "--kind", "lease"}},
		{"TERM", syscall.SIGTERM, []string{"lock", "x"}},
		{"HUP", syscall.SIGHUP, []string{"once", "k"}},
	}, func(t *testing.T, s *mysqltest.Server, ends ending) {
		config, _ := database(t, s)
		p := launch(t, config, nil, append(ends.args, "--", "sh", "-c", "trap 'echo USR1' USR1; trap 'echo QUIT' QUIT; trap 'echo ended; exit 9' "+
			ends.trap+"; echo begun; while :; do sleep 0.05; done")...)
		p.out.contains(t, "begun\n")
		p.signal(t, syscall.SIGUSR1)
		p.out.contains(t, "USR1\n")
		p.signal(t, syscall.SIGQUIT)
		p.out.contains(t, "QUIT\n")
		p.signal(t, ends.signal)
		require.Equal(t, 9, p.code(t), p.err.String())
		require.Equal(t, "begun\nUSR1\nQUIT\nended\n", p.out.String())
	})
}

// Ctrl-Z stops the command as well, so that it does nothing while others have its lock or task. When the command continues,
// mqnotify ends it, because the lock or task is lost.
func TestLockStopped(t *testing.T) {
	type job struct {
		args []string
		code int
	}
	mysqltest.EachCase(t, []job{ // a second or two pass between SIGTERM and SIGKILL
		{[]string{"lock", "x", "--kind", "lease", "--ttl", mysqltest.Size("10s", "20s", "20s")}, 3},
		{[]string{"work", "mail", "--visibility", mysqltest.Size("20s", "40s", "40s")}, exitDone},
	}, func(t *testing.T, s *mysqltest.Server, stopped job) {
		config, db := queueDatabase(t, s)
		succeed(t, config, "enqueue", "mail", "x")
		file := filepath.Join(t.TempDir(), "lines")
		shell := &syscall.SysProcAttr{Setpgid: true} // as a shell starts its jobs
		// This uses bash, because dash forks by vfork: a process that is stopped between vfork and exec is in state D and not
		// T.
		p := launchIn(t, shell, config, nil, append(stopped.args, "--", "bash", "-c",
			"trap 'echo asked; exit 3' TERM; while :; do echo first >> "+file+"; [ $said ] || echo $$; said=1; sleep 0.05; done")...)
		p.out.contains(t, "\n")
		p.signal(t, syscall.SIGTSTP)
		requireStopped(t, words(p.out.String())[0])
		before := linesOf(t, file)
		for _, held := range []string{"mqnotify_lease SET expires_at", "mqnotify_task SET state_at"} { // the lease and the claim run out
			mysqltest.Exec(t, db, "UPDATE "+held+" = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
		}
		other := background(t, config, append(stopped.args, "--", "sh", "-c", "echo second >> "+file+"; echo has it")...)
		other.out.contains(t, "has it\n")
		require.Equal(t, append(before, "second"), linesOf(t, file), "the first command ran while the second held its lock or task")
		p.signal(t, syscall.SIGCONT)
		p.out.contains(t, "asked\n")
		_ = p.Process.Signal(syscall.SIGTERM) // fails for lock, which ends by itself
		require.Equal(t, stopped.code, p.code(t), p.err.String())
	})
}

// If Ctrl-Z does not stop mqnotify, because no shell could continue it, mqnotify does not leave its command stopped.
func TestLockNotStopped(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		p := launchIn(t, &syscall.SysProcAttr{Setsid: true}, config, nil, "lock", "x", "--", "sh", "-c",
			"trap 'echo goes on' CONT; trap 'exit 9' TERM; echo begun; while :; do sleep 0.05; done")
		p.out.contains(t, "begun\n")
		p.signal(t, syscall.SIGTSTP)
		p.out.contains(t, "goes on\n")
		p.signal(t, syscall.SIGTERM)
		require.Equal(t, 9, p.code(t), p.err.String())
	})
}

// When mqnotify is killed with kill -9, all processes that its command has started end, and the lock is free: an advisory lock
// after that, a lease after its ttl. No process of the first holder exists when the command of the next holder runs.
func TestLockKilled(t *testing.T) {
	type killed struct{ kind, script string }
	all := []killed{
		{kindAdvisory, `echo $$; exec sleep 1000`},
		{kindLease, `sh -c 'echo $$; exec sleep 1000' & wait`},
		{kindAdvisory, `trap '' TERM; sh -c 'echo $$; exec sleep 1000'; :`}, // only SIGKILL ends this command
	}
	if runtime.GOOS == "linux" {
		all = append(all, killed{kindAdvisory, `trap '' TERM; setsid sh -c '(setsid sh -c "echo \$\$; exec sleep 1000" &) &' & sleep 1000`})
	}
	mysqltest.EachCase(t, all, func(t *testing.T, s *mysqltest.Server, killed killed) {
		config, db := database(t, s)
		args := []string{"lock", "x", "--kind", killed.kind}
		if killed.kind == kindLease {
			args = append(args, "--ttl", "1h")
		}
		p := launch(t, config, nil, append(args, "--", "sh", "-c", killed.script)...)
		p.out.contains(t, "\n")
		p.signal(t, os.Kill)
		pid := words(p.out.String())[0]
		if killed.kind == kindLease {
			requireGone(t, pid)
			mysqltest.Exec(t, db, "UPDATE mqnotify_lease SET expires_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND") // the ttl is over
		}
		require.Equal(t, "gone\n", succeed(t, config, append(args, "--timeout", patience.String(), "--", "sh", "-c", "ps -o stat= -p "+pid+" | grep -q '^[^Z]' || echo gone")...))
	})
}

// The lock is held until all processes of the command's group have ended. mqnotify exits with the exit code of the command.
func TestLockUntilTheGroupHasEnded(t *testing.T) {
	mysqltest.EachCase(t, lockKinds, func(t *testing.T, s *mysqltest.Server, kind string) {
		config, _ := database(t, s)
		gate := filepath.Join(t.TempDir(), "gate")
		require.NoError(t, syscall.Mkfifo(gate, 0o600))
		p := launch(t, config, nil, "lock", "x", "--kind", kind, "--", "sh", "-c", "(read -r _ < "+gate+"; echo ended) & echo $$; exit 3")
		p.out.contains(t, "\n")
		requireGone(t, words(p.out.String())[0])
		for range 3 {
			fail(t, exitNotGot, config, "lock", "x", "--kind", kind, "--timeout", "0s", "--", "true")
		}
		require.NoError(t, os.WriteFile(gate, []byte("\n"), 0o600))
		require.Equal(t, 3, p.code(t), p.err.String())
		p.out.contains(t, "ended\n")
		succeed(t, config, "lock", "x", "--kind", kind, "--timeout", "0s", "--", "true")
	})
}
