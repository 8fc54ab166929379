package guard_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const peerEnv = "MQNOTIFY_GUARD_PEER"

// childInput is the input of a process of a test. The process does what its role does, reads orders line
// by line and answers in lines.
type childInput struct {
	Role, DSN, Kind, Name string
	TTL                   time.Duration
	Choices               string // the name of its random choices
}

// random returns the source of random choices of such a process.
func (t childInput) random() *rand.Rand { return mysqltest.RandomOf(t.Choices) }

// parties counts the processes that each test has started.
var parties sync.Map

// roles are the possible roles of a process.
var roles = map[string]func(ctx context.Context, db *notify.DB, t childInput) error{
	"racer":   raceMain,
	"worker":  workerMain,
	"row":     rowMain,
	"history": historyMain,
	"clock":   clockMain,
	"every":   everyMain,
}

// peer is such a process, as the test sees it.
type peer struct {
	command *exec.Cmd
	orders  io.WriteCloser
	lines   chan string // what it says; closed at its end
	said    bytes.Buffer
	ended   chan struct{}
	killed  sync.Once
}

// startPeer starts a process, which ends with the test's process.
func startPeer(t *testing.T, input childInput) *peer {
	t.Helper()
	return startProgram(t, os.Args[0], input)
}

func startProgram(t *testing.T, program string, input childInput) *peer {
	t.Helper()
	count, _ := parties.LoadOrStore(t.Name(), new(atomic.Int32))
	input.Choices = fmt.Sprint(t.Name(), count.(*atomic.Int32).Add(1))
	text, err := json.Marshal(input)
	require.NoError(t, err)
	p := &peer{command: exec.Command(program), lines: make(chan string, 1<<16), ended: make(chan struct{})}
	p.command.Env = append(os.Environ(), peerEnv+"="+string(text))
	p.command.Stderr = &p.said // read when the process has ended
	p.orders, err = p.command.StdinPipe()
	require.NoError(t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.command.Start())
	go func() {
		defer close(p.ended)
		defer close(p.lines)
		for scan := bufio.NewScanner(out); scan.Scan(); {
			p.lines <- scan.Text()
		}
		_ = p.command.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && p.said.Len() > 0 {
			t.Logf("%s: %s", input.Role, p.said.String())
		}
	})
	return p
}

// kill kills with kill -9, also a stopped process, and returns when the process has ended.
func (p *peer) kill() {
	p.killed.Do(func() {
		_ = p.command.Process.Kill() // it may have ended by itself
		<-p.ended
		_ = p.orders.Close()
	})
}

// tell writes a line to the process, which may have ended.
func (p *peer) send(line string) { _, _ = io.WriteString(p.orders, line+"\n") }

// hear returns the next line of the process; false at its end.
func (p *peer) read(t *testing.T) (string, bool) {
	t.Helper()
	select {
	case line, ok := <-p.lines:
		return line, ok
	case <-time.After(patience):
		t.Errorf("the process says nothing in %v", patience)
		return "", false
	}
}

func peerMain(text string) error {
	var t childInput
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	db, err := notify.Open(t.DSN)
	if err != nil {
		return err
	}
	db.Pool().SetMaxIdleConns(4)
	return roles[t.Role](context.Background(), db, t)
}

// eachOrder calls f with every line of input, until the test's process closes the other
// end or ends.
func eachOrder(f func(order string) error) error {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := f(lines.Text()); err != nil {
			return err
		}
	}
	return lines.Err()
}

func say(format string, args ...any) { _, _ = fmt.Fprintf(os.Stdout, format+"\n", args...) }
