//go:build unix

package supervisor_test

import (
	"bufio"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/supervisor"
)

// patience is how long a test waits for an event.
const patience = 60 * time.Second

// holder is the environment variable that makes the test's program run the command that follows, until it is killed.
const holder = "MQNOTIFY_TEST_HOLDER"

func TestMain(m *testing.M) {
	if os.Getenv(holder) == "" {
		os.Exit(m.Run())
	}
	c := supervisor.New(os.Args[1:], time.Hour)
	c.Stdout = os.Stdout
	if err := c.Start(); err != nil {
		panic(err)
	}
	_ = c.Wait() // it is killed before
}

// start starts a shell command whose stdout is read line by line.
func start(tb testing.TB, gentle time.Duration, script string, args ...string) (*supervisor.Command, *bufio.Reader) {
	tb.Helper()
	c := supervisor.New(append([]string{"bash", "-c", script}, args...), gentle)
	read, write, err := os.Pipe()
	require.NoError(tb, err)
	tb.Cleanup(func() { _ = read.Close() })
	c.Stdout, c.Stderr = write, os.Stderr
	require.NoError(tb, c.Start())
	require.NoError(tb, write.Close())
	require.NoError(tb, read.SetReadDeadline(time.Now().Add(patience)))
	return c, bufio.NewReader(read)
}

func line(tb testing.TB, r *bufio.Reader) string {
	tb.Helper()
	text, err := r.ReadString('\n')
	require.NoError(tb, err)
	return strings.TrimSuffix(text, "\n")
}

// requireGone waits until a process has ended.
func requireGone(tb testing.TB, pid string) {
	tb.Helper()
	require.Eventually(tb, func() bool { return slices.Contains([]string{"", "Z"}, child.State(pid)) }, patience, 25*time.Millisecond, "process %s", pid)
}

// family is commands that start others, also in the ways of daemons. Each prints the process id of the one that matters.
func family(tb testing.TB) map[string]string {
	tb.Helper()
	all := map[string]string{
		"the command":                   `echo $$; exec sleep 1000`,
		"its child":                     `sleep 1000 & echo $!; wait`,
		"a child of a child":            `bash -c 'sleep 1000 & echo $!; wait' & wait`,
		"one whose parent has ended":    `bash -c 'sleep 1000 & echo $!'; sleep 1000`,
		"one that ignores SIGHUP":       `nohup sleep 1000 2>&- & echo $!; wait`,
		"one that the command has left": `sleep 1000 & echo $!`,
	}
	if runtime.GOOS == "linux" {
		all["a session of its own"] = `setsid sh -c 'echo $$; exec sleep 1000' & wait`
		all["a daemon, forked twice"] = `setsid bash -c '(echo $BASHPID; cd /; exec sleep 1000 </dev/null >/dev/null 2>&1) & ' & sleep 1000`
		all["a daemon of a daemon"] = `setsid bash -c '(setsid bash -c "(echo \$BASHPID; exec sleep 1000 >/dev/null) &" &) &' & sleep 1000`
		all["a job of an interactive shell"] = `set -m; sleep 1000 & echo $!; wait`
	}
	return all
}

// When the process that runs a command is killed with SIGKILL, everything that the command has started ends.
func TestCallerKilled(t *testing.T) {
	for name, script := range family(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			caller := exec.CommandContext(t.Context(), os.Args[0], "bash", "-c", script)
			caller.Env = append(os.Environ(), holder+"=1")
			out, err := caller.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, caller.Start())
			pid := line(t, bufio.NewReader(out))
			require.NotEmpty(t, child.State(pid))
			require.NoError(t, caller.Process.Kill())
			requireGone(t, pid)
			_ = caller.Wait() // it was killed
		})
	}
}

// End and Kill end everything that the command has started, before Wait returns.
func TestEnd(t *testing.T) {
	for name, script := range family(t) {
		for way, end := range map[string]func(*supervisor.Command){"End": (*supervisor.Command).End, "Kill": (*supervisor.Command).Kill} {
			t.Run(name+" "+way, func(t *testing.T) {
				t.Parallel()
				c, out := start(t, time.Hour, script)
				pid := line(t, out)
				end(c)
				_ = c.Wait() // the exit code is the command's, or that of the signal
				require.Empty(t, child.State(pid))
			})
		}
	}
}

// A process whose parent started it just before the parent ended is asked to end, too.
func TestEndOfAnOrphan(t *testing.T) {
	t.Parallel()
	c, out := start(t, time.Hour, `trap 'sleep 1000 & echo $!; exit' TERM; echo ready; while :; do sleep 0.01; done`)
	require.Equal(t, "ready", line(t, out))
	c.End()
	pid := line(t, out)
	_ = c.Wait() // the exit code is the command's, or that of the signal
	require.Empty(t, child.State(pid))
}

// A process that ignores SIGTERM gets SIGKILL after the patience. A stopped process is continued, so that it gets SIGTERM.
func TestPatience(t *testing.T) {
	t.Parallel()
	c, out := start(t, 50*time.Millisecond, `trap '' TERM; bash -c 'setsid sleep 1000 & echo $!; exec sleep 1000' & wait; wait`)
	pid := line(t, out)
	c.End()
	require.Equal(t, &supervisor.ExitError{Code: 128 + int(syscall.SIGKILL)}, c.Wait())
	require.Empty(t, child.State(pid))

	c, out = start(t, time.Hour, `trap 'exit 7' TERM; echo $$; while :; do sleep 0.01; done`)
	pid = line(t, out)
	c.Signal(syscall.SIGSTOP)
	require.Eventually(t, func() bool { return child.State(pid) == "T" }, patience, 25*time.Millisecond)
	c.End()
	require.Equal(t, &supervisor.ExitError{Code: 7}, c.Wait())
}

// A command has ended when its group has ended. A process that has left the group is not waited for, and continues.
func TestGroup(t *testing.T) {
	t.Parallel()
	gate := filepath.Join(t.TempDir(), "gate")
	c, out := start(t, time.Hour, `(read -r _ < "$0"; echo ended) & setsid sleep 1000 >/dev/null & echo $! $$; exit 3`, fifo(t, gate))
	pids := strings.Fields(line(t, out))
	waited := make(chan error, 1)
	go func() { waited <- c.Wait() }()
	requireGone(t, pids[1])
	for range 10 {
		require.NotContains(t, []string{"", "Z"}, child.State(strconv.Itoa(c.Process.Pid)), "the supervisor ended before the group")
	}
	require.Empty(t, waited)
	require.NoError(t, os.WriteFile(gate, []byte("\n"), 0o600))
	require.Equal(t, "ended", line(t, out))
	require.Equal(t, &supervisor.ExitError{Code: 3}, <-waited)
	require.NotContains(t, []string{"", "Z"}, child.State(pids[0]))
	require.NoError(t, exec.CommandContext(t.Context(), "kill", "-9", pids[0]).Run())
}

// The exit code is the command's, or that of the signal that ended it.
func TestExitCode(t *testing.T) {
	t.Parallel()
	for script, code := range map[string]int{"exit 3": 3, "exit 255": 255, "kill -KILL $$": 137, "kill -TERM $$": 143, "kill -SEGV $$": 139, "kill -INT $$": 130} {
		c, _ := start(t, time.Hour, script)
		require.Equal(t, &supervisor.ExitError{Code: code}, c.Wait(), script)
	}
	c, _ := start(t, time.Hour, "exit 0")
	require.NoError(t, c.Wait())
}

// A command that can't be started is an error with the kernel's number.
func TestNotStarted(t *testing.T) {
	t.Parallel()
	script := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(script, []byte("\x01no program"), 0o700))
	c := supervisor.New([]string{script}, time.Hour)
	require.NoError(t, c.Start())
	require.ErrorIs(t, c.Wait(), syscall.ENOEXEC)

	require.ErrorIs(t, supervisor.New([]string{"no-such-command"}, time.Hour).Start(), exec.ErrNotFound)
}

// The command has the caller's streams and environment, and no other descriptors. Its group gets signals; the supervisor ignores them.
func TestCommandInheritsStreams(t *testing.T) {
	t.Parallel()
	const list = `ls /dev/fd | tr '\n' ' '; echo`
	direct, err := exec.CommandContext(t.Context(), "bash", "-c", list).Output()
	require.NoError(t, err)
	c := supervisor.New([]string{"bash", "-c", `cat; echo "$0 $1 $V"; echo error >&2; exec 2>/dev/null
trap 'echo got; exit 0' USR1; kill -TERM $PPID; ` + list + `; while :; do sleep 0.01; done`, "zero", "-one"}, time.Hour)
	read, write := io.Pipe()
	c.Stdin, c.Stdout, c.Stderr, c.Env = strings.NewReader("in\n"), write, write, append(os.Environ(), "V=v")
	require.NoError(t, c.Start())
	out := bufio.NewReader(read)
	require.Equal(t, "in", line(t, out))
	require.Equal(t, "zero -one v", line(t, out))
	require.Equal(t, "error", line(t, out))
	require.Equal(t, string(direct), line(t, out)+"\n")
	c.Signal(syscall.SIGUSR1)
	require.Equal(t, "got", line(t, out))
	require.NoError(t, c.Wait())
	c.Signal(syscall.SIGUSR1) // the process has ended
	c.Kill()
	c.End()
}

// The reader of the command's stdout sees its end when the command closes it, and not later.
func TestStreamsBelongToTheCommand(t *testing.T) {
	t.Parallel()
	c, out := start(t, time.Hour, `exec >&-; exec sleep 1000`)
	_, err := out.ReadByte()
	require.ErrorIs(t, err, io.EOF)
	c.Kill()
	require.Equal(t, &supervisor.ExitError{Code: 137}, c.Wait())
}

// The command inherits the descriptors that the caller has inherited.
func TestInherited(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	caller := exec.CommandContext(t.Context(), "bash", "-c", `exec 4>"$0" 7>&1; exec "$@"`, file, os.Args[0], "bash", "-c", "echo four >&4; echo seven >&7")
	caller.Env = append(os.Environ(), holder+"=1")
	out, err := caller.Output()
	require.NoError(t, err)
	require.Equal(t, "seven\n", string(out))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "four\n", string(text))
}

// A socket that the supervisor keeps is open until everything that the command has started has ended.
func TestKeep(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	conn, err := net.Dial("tcp", listener.Addr().String())
	require.NoError(t, err)
	other, err := listener.Accept()
	require.NoError(t, err)
	defer other.Close()

	c := supervisor.New([]string{"bash", "-c", `trap '' TERM; setsid sleep 1000 & echo $!; wait; wait`}, 300*time.Millisecond)
	c.Keep(conn.(*net.TCPConn))
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	pid := line(t, bufio.NewReader(out))
	require.NoError(t, conn.SetReadDeadline(time.Now())) // the read below never returns if the socket is a blocking one
	_, err = conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, conn.Close())
	c.End()
	require.NoError(t, other.SetReadDeadline(time.Now().Add(patience)))
	_, err = other.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF)
	require.Empty(t, child.State(pid))
	require.Error(t, c.Wait())
}

// A killed supervisor ends the command.
func TestSupervisorKilled(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the kernel ends no process with another one")
	}
	t.Parallel()
	c, out := start(t, time.Hour, `echo $$; exec sleep 1000`)
	pid := line(t, out)
	require.NoError(t, c.Process.Kill())
	require.Equal(t, &supervisor.ExitError{Code: 137}, c.Wait())
	requireGone(t, pid)
}

// fifo creates a named pipe and returns its path.
func fifo(tb testing.TB, path string) string {
	tb.Helper()
	require.NoError(tb, syscall.Mkfifo(path, 0o600))
	return path
}
