package waiting_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

const listenerEnv = "MQNOTIFY_WAITING_LISTENER"

// listenerMain is a process that listens to the table orders and prints every head that it sees.
func listenerMain(dsn string) error {
	go func() { // the test's process holds the other end
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return err
	}
	w := &watcher{
		listener: waiting.New(config, slog.New(slog.DiscardHandler)).Listen(topicOf("orders")),
		tell:     func(id uint64) { fmt.Println(id) },
	}
	return w.watch(context.Background())
}

// listenerProcess is such a process.
type listenerProcess struct {
	watcher
	command *exec.Cmd
	ended   chan struct{}
}

// startListener starts a process that prints every head.
func startListener(t *testing.T, config *mysql.Config, tell func(id uint64)) *listenerProcess {
	t.Helper()
	p := &listenerProcess{watcher: watcher{tell: tell}, command: exec.Command(os.Args[0]), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), listenerEnv+"="+config.FormatDSN())
	alive, err := p.command.StdinPipe()
	require.NoError(t, err)
	heads, err := p.command.StdoutPipe()
	require.NoError(t, err)
	var failure strings.Builder // read when the process has ended
	p.command.Stderr = &failure
	require.NoError(t, p.command.Start())
	go func() {
		defer close(p.ended)
		lines := bufio.NewScanner(heads)
		for lines.Scan() {
			if id, err := strconv.ParseUint(lines.Text(), 10, 64); err == nil {
				p.note(id)
			}
		}
		_ = p.command.Wait()
	}()
	t.Cleanup(func() {
		_ = alive.Close()
		p.kill()
		if t.Failed() && failure.Len() > 0 {
			t.Logf("process %d: %s", p.command.Process.Pid, failure.String())
		}
	})
	return p
}

// kill kills the process, unless it is dead.
func (p *listenerProcess) kill() {
	_ = p.command.Process.Kill()
	<-p.ended
}

// The invariant: whichever process is killed or stopped, the others see every row, and a stopped one sees them as soon as it
// continues.
func TestKilledProcesses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('first')")
		random := mysqltest.Random(t)
		processes := make([]*listenerProcess, 3)
		for i := range processes {
			processes[i] = startListener(t, config, nil)
		}
		sees := func(p *listenerProcess, id uint64) {
			t.Helper()
			mysqltest.Eventually(t, fmt.Sprintf("process %d sees row %d", p.command.Process.Pid, id), func() bool { _, ok := p.at(id); return ok })
		}
		insert := func() uint64 {
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
			return mysqltest.Value[uint64](t, db, "SELECT MAX(id) FROM orders")
		}
		for range mysqltest.Many(3, 6, 500) {
			for _, p := range processes {
				sees(p, mysqltest.Value[uint64](t, db, "SELECT MAX(id) FROM orders"))
			}
			i := random.IntN(len(processes))
			victim := processes[i]
			stopped := random.IntN(2) == 0
			if stopped {
				require.NoError(t, victim.command.Process.Signal(syscall.SIGSTOP))
			} else {
				victim.kill()
				processes[i] = startListener(t, config, nil)
			}
			pause(t.Context(), time.Duration(random.Int64N(int64(10*time.Millisecond))))
			last := insert()
			for _, p := range processes {
				if p != victim {
					sees(p, last)
				}
			}
			if stopped {
				require.NoError(t, victim.command.Process.Signal(syscall.SIGCONT))
				sees(victim, last)
				sees(victim, insert())
			}
		}
		for _, p := range processes {
			assert.NoError(t, p.command.Process.Signal(syscall.Signal(0)), "it ended by itself")
		}
	})
}
