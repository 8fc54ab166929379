//go:build unix

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	testchild "github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// process is mqnotify in a process of its own.
type process struct {
	*exec.Cmd
	out, err text
	ended    chan struct{}
}

// program builds mqnotify once and returns its path.
var program = sync.OnceValues(func() (string, error) {
	folder, err := mysqltest.Folder()
	if err != nil {
		return "", err
	}
	path := filepath.Join(folder, "mqnotify")
	args := []string{"build", "-o", path, "-ldflags=-s -w", "-buildvcs=false"} // links faster
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"}) {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, ".")...).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("build mqnotify: %w\n%s", err, out)
	}
	return path, nil
})

func launch(tb testing.TB, config *mysql.Config, stdin io.Reader, args ...string) *process {
	tb.Helper()
	return launchIn(tb, nil, config, stdin, args...)
}

// launchIn is launch in another process group or session.
func launchIn(tb testing.TB, attributes *syscall.SysProcAttr, config *mysql.Config, stdin io.Reader, args ...string) *process {
	tb.Helper()
	p := newProcess(tb, config, args...)
	p.Stdin, p.Stdout, p.Stderr = stdin, &p.out, &p.err
	p.SysProcAttr = attributes
	p.start(tb)
	return p
}

// newProcess returns a process that is not started yet.
func newProcess(tb testing.TB, config *mysql.Config, args ...string) *process {
	tb.Helper()
	path, err := program()
	require.NoError(tb, err)
	p := &process{Cmd: exec.CommandContext(tb.Context(), path, args...), ended: make(chan struct{})}
	p.Env = environment(tb, config)
	return p
}

func (p *process) start(tb testing.TB) {
	tb.Helper()
	p.WaitDelay = 10 * time.Second // a command that it runs may still have its stdout open
	require.NoError(tb, p.Start())
	go func() {
		defer close(p.ended)
		_ = p.Wait() // code reads the exit code
	}()
	tb.Cleanup(func() {
		_ = p.Process.Kill() // it may have ended
		<-p.ended
	})
}

func (p *process) signal(tb testing.TB, signal os.Signal) {
	tb.Helper()
	require.NoError(tb, p.Process.Signal(signal))
}

// code waits until the process has ended, and returns its exit code.
func (p *process) code(tb testing.TB) int {
	tb.Helper()
	select {
	case <-p.ended:
	case <-time.After(patience):
		tb.Fatalf("the process does not end\n%s%s", p.out.String(), p.err.String())
	}
	return p.ProcessState.ExitCode()
}

// A message goes from produce in one terminal to consume in another one.
func TestTwoTerminals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		consume := launch(t, config, nil, "consume", "orders", "--format", "payload", "--log-level", "debug")
		consume.err.contains(t, "msg=reading")
		in, typed := io.Pipe()
		produce := launch(t, config, in, "produce", "orders")
		for _, line := range []string{"hello\n", "world\n"} {
			_, err := io.WriteString(typed, line)
			require.NoError(t, err)
			consume.out.contains(t, line)
		}
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, produce.code(t))
		require.Empty(t, produce.err.String())
		consume.signal(t, os.Interrupt)
		require.Equal(t, exitDone, consume.code(t))
		require.Equal(t, "hello\nworld\n", consume.out.String())
	})
}

// When a listener dies, even the leader of the gate, the others receive the later notifications. The packages log in the format
// of the command.
func TestListenInTerminals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		succeed(t, config, "init")
		var listeners [3]*process
		for i := range listeners {
			listeners[i] = launch(t, config, nil, "listen", "reload", "--log-format", "json")
			listeners[i].err.contains(t, `"msg":"listening"`)
			listeners[i].err.contains(t, `"msg":"waiting","mode":"trigger"}`)
		}
		require.Equal(t, exitDone, launch(t, config, nil, "notify", "reload", "one").code(t))
		for i, l := range listeners {
			l.out.contains(t, " reload one\n")
			l.signal(t, os.Kill)
			for _, left := range listeners[i+1:] {
				succeed(t, config, "notify", "reload", fmt.Sprint("after ", i))
				left.out.contains(t, fmt.Sprint(" reload after ", i, "\n"))
			}
		}
		last := launch(t, config, nil, "listen", "reload")
		last.err.contains(t, "listening")
		last.signal(t, os.Interrupt)
		require.Equal(t, exitDone, last.code(t))
	})
}

// After the first signal the running command finishes, also after a Ctrl-C in the terminal, and its message is stored as
// handled. Two signals at once, as timeout(1) sends them, count as one.
func TestFirstSignal(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, signal := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			config, db := database(t, s, "orders")
			succeed(t, config, "produce", "orders", "one", "two")
			gate := filepath.Join(t.TempDir(), "gate")
			p := launch(t, config, nil, "consume", "orders", "--group", "g", "--from", "beginning", "--",
				"sh", "-c", "echo begun; while ! [ -e "+gate+" ]; do sleep 0.05; done; echo ended")
			p.out.contains(t, "begun\n")
			p.signal(t, signal)
			p.signal(t, signal)
			p.err.contains(t, "a second signal stops at once")
			require.NoError(t, os.WriteFile(gate, nil, 0o600))
			require.Equal(t, exitDone, p.code(t))
			require.Equal(t, "begun\nended\n", p.out.String())
			require.Equal(t, []string{"1"}, mysqltest.Values[string](t, db, "SELECT settled FROM mqnotify_offset"))
		}
	})
}

// The second signal ends everything at once, also the running command.
func TestSecondSignal(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "one")
		p := launch(t, config, nil, "consume", "orders", "--group", "g", "--from", "beginning", "--",
			"sh", "-c", "trap '' TERM INT; sleep 1000 & echo $! begun; wait; wait")
		p.out.contains(t, "begun\n")
		p.signal(t, os.Interrupt)
		p.err.contains(t, "a second signal stops at once") // two signals at once may arrive as one
		p.signal(t, os.Interrupt)
		require.Equal(t, exitFailed, p.code(t))
		p.err.contains(t, "stopped at once")
		requireGone(t, words(p.out.String())[0])
		require.Equal(t, []string{"0"}, mysqltest.Values[string](t, db, "SELECT settled FROM mqnotify_offset"))
	})
}

// If the reader of stdout stops reading, the messages that were not written do not count as handled.
func TestBrokenPipe(t *testing.T) {
	intoBrokenPipe(t, nil, "init", "--print", "orders")
	intoBrokenPipe(t, nil, "grants", "orders", "--database", "shop")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders", "other")
		succeed(t, config, "produce", "orders", "one", "two", "three")
		intoBrokenPipe(t, config, "consume", "orders", "--group", "g", "--from", "beginning", "--log-level", "warn")
		intoBrokenPipe(t, config, "consume", "orders", "--group", "h", "--from", "beginning", "--limit", "1", "--log-level", "warn")
		for _, group := range []string{"g", "h"} {
			require.Equal(t, "one\ntwo\nthree\n", succeed(t, config, "consume", "orders", "--group", group, "--stop-at-end", "--format", "payload"))
		}
		notifying, stop := context.WithCancel(t.Context())
		var notifier sync.WaitGroup
		notifier.Go(func() {
			for notifying.Err() == nil { // repeated, because nothing shows when listen is ready
				_, _ = db.ExecContext(notifying, "INSERT INTO mqnotify_notification (name) VALUES ('orders')")
				<-time.After(10 * time.Millisecond)
			}
		})
		intoBrokenPipe(t, config, "listen", "orders", "--log-level", "warn")
		stop()
		notifier.Wait()
		intoBrokenPipe(t, config, "produce", "other", "x", "--print-ids")
		require.Equal(t, "x\n", succeed(t, config, "consume", "other", "--from", "1", "--stop-at-end", "--format", "payload"))
		p := runIntoBrokenPipe(t, config, "produce", "other", "y", "z", "--batch", "1", "--print-ids")
		require.Equal(t, exitFailed, p.code(t), "z is not published")
		require.Contains(t, p.err.String(), "messages published: 1")
	})
}

// intoBrokenPipe runs a command whose stdout has no reader. It must exit with 0 and print nothing.
func intoBrokenPipe(tb testing.TB, config *mysql.Config, args ...string) {
	tb.Helper()
	p := runIntoBrokenPipe(tb, config, args...)
	require.Equal(tb, exitDone, p.code(tb), "%q %s", args, p.err.String())
	require.Empty(tb, p.err.String(), "%q", args)
}

func runIntoBrokenPipe(tb testing.TB, config *mysql.Config, args ...string) *process {
	tb.Helper()
	read, write, err := os.Pipe()
	require.NoError(tb, err)
	require.NoError(tb, read.Close())
	p := newProcess(tb, config, args...)
	p.Stdout, p.Stderr = write, &p.err
	p.start(tb)
	require.NoError(tb, write.Close())
	return p
}

// When a member of a group is killed, its standby takes over at once.
func TestStandby(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		args := []string{"consume", "orders", "--group", "g", "--from", "beginning", "--format", "payload"}
		first := launch(t, config, nil, args...)
		succeed(t, config, "produce", "orders", "one")
		first.out.contains(t, "one\n")
		second := launch(t, config, nil, args...)
		second.err.contains(t, "standing by")
		third := launch(t, config, nil, args...)
		third.err.contains(t, "standing by")
		third.signal(t, os.Interrupt)
		require.Equal(t, exitDone, third.code(t), third.err.String())
		first.signal(t, os.Kill)
		succeed(t, config, "produce", "orders", "two")
		second.out.contains(t, "two\n")
		second.signal(t, syscall.SIGTERM)
		require.Equal(t, exitDone, second.code(t))
	})
}

// The process has the exit codes of the command line.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	require.Equal(t, exitDone, launch(t, nil, nil, "--version").code(t))
	require.Equal(t, exitFailed, launch(t, nil, nil, "tail", "t").code(t))
	require.Equal(t, exitUsage, launch(t, nil, nil, "tail").code(t))
}

// requireGone waits until the process has ended. It may stay a zombie, because it may have no parent left that reads its exit
// code.
func requireGone(tb testing.TB, pid string) {
	tb.Helper()
	require.Eventually(tb, func() bool { return slices.Contains([]string{"", "Z"}, testchild.State(pid)) }, patience, 25*time.Millisecond)
}

// requireStopped waits until the process is stopped.
func requireStopped(tb testing.TB, pid string) {
	tb.Helper()
	require.Eventually(tb, func() bool { return testchild.State(pid) == "T" }, patience, 25*time.Millisecond)
}
