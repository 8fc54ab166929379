//go:build unix

package main

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Under nohup the command survives the end of the terminal: mqnotify does not forward SIGHUP.
func TestLockUnderNohup(t *testing.T) {
	mysqltest.EachCase(t, [][]string{{"lock", "x"}, {"once", "k"}}, func(t *testing.T, s *mysqltest.Server, guard []string) {
		config, _ := database(t, s)
		shell := "trap 'echo USR1' USR1; trap 'echo HUP' HUP; trap 'echo ended; exit 9' TERM; echo begun; while :; do sleep 0.01; done"
		p := launchIgnoring(t, config, "HUP", append(guard, "--", "bash", "-c", shell)...)
		p.out.contains(t, "begun\n")
		p.signal(t, syscall.SIGHUP)
		p.signal(t, syscall.SIGUSR1) // the command would get a forwarded HUP before it
		p.out.contains(t, "USR1\n")
		p.signal(t, syscall.SIGTERM)
		require.Equal(t, 9, p.code(t), p.err.String())
		require.Equal(t, "begun\nUSR1\nended\n", p.out.String())
	})
}

// A process that ignores SIGINT from its start, as one in the background of a script does, goes on at Ctrl-C.
func TestLockIgnoresInterrupt(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		p := launchIgnoring(t, config, "INT", "lock", "x", "--", "bash", "-c",
			"trap 'echo USR1' USR1; trap 'echo ended; exit 9' TERM; echo begun; while :; do sleep 0.01; done")
		p.out.contains(t, "begun\n")
		p.signal(t, syscall.SIGINT)
		p.signal(t, syscall.SIGUSR1)
		p.out.contains(t, "USR1\n")
		require.NotContains(t, p.out.String(), "ended")
		p.signal(t, syscall.SIGTERM)
		require.Equal(t, 9, p.code(t), p.err.String())
	})
}

// launchIgnoring is launch for a process that ignores a signal from its start.
func launchIgnoring(tb testing.TB, config *mysql.Config, signal string, args ...string) *process {
	tb.Helper()
	p := newProcess(tb, config, args...)
	p.Args = append([]string{"sh", "-c", `trap "" ` + signal + `; exec "$0" "$@"`, p.Path}, args...)
	p.Path, p.Err = exec.LookPath("sh")
	p.Stdout, p.Stderr = &p.out, &p.err
	p.start(tb)
	return p
}
