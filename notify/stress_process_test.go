package notify_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/notify"
)

const stressEnv = "MQNOTIFY_GATE_STRESS_PROCESS"

// stressTold is what a process of a stress is told. It does what it reads line by
// line, "join" or "publish", or tells how often it has "rung" the gate, and writes the
// line when it is done, with the id of what it published or that number. A process that
// listens writes what it sees besides.
type stressTold struct {
	DSN     string
	Listens bool
}

// stressProcess is such a process, seen from the test.
type stressProcess struct {
	t       *testing.T
	user    string // its sessions'
	command *exec.Cmd
	orders  io.WriteCloser
	done    chan string
	listens *stressListener // nil if it does not
	ended   chan struct{}
}

// startStressProcess starts a process, which lives no longer than the test's.
func startStressProcess(t *testing.T, config *mysql.Config, listens *stressListener) *stressProcess {
	t.Helper()
	told, err := json.Marshal(stressTold{DSN: config.FormatDSN(), Listens: listens != nil})
	require.NoError(t, err)
	p := &stressProcess{
		t: t, user: config.User, command: exec.Command(os.Args[0]), listens: listens,
		done: make(chan string, 1), ended: make(chan struct{}),
	}
	p.command.Env = append(os.Environ(), stressEnv+"="+string(told))
	var said bytes.Buffer // read when the process has ended
	p.command.Stderr = &said
	p.orders, err = p.command.StdinPipe()
	require.NoError(t, err)
	out, err := p.command.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.command.Start())
	go func() {
		defer close(p.ended)
		defer close(p.done)
		p.hear(out)
		_ = p.command.Wait()
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() && said.Len() > 0 {
			t.Logf("%s: %s", p.user, said.String())
		}
	})
	return p
}

// hear reads what the process writes until its end.
func (p *stressProcess) hear(out io.Reader) {
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var id uint64
		if _, err := fmt.Sscanf(lines.Text(), "seen %d", &id); err == nil {
			p.listens.note(id, 0)
			continue
		}
		p.done <- lines.Text()
	}
}

// kill is kill -9, also for one that is stopped.
func (p *stressProcess) kill() {
	_ = p.command.Process.Kill()
	for range p.done { // what it still said
	}
	<-p.ended
}

// order tells the process what to do and returns when it has done it. ok is false
// when it was killed meanwhile.
func (p *stressProcess) order(what string) (id uint64, ok bool) {
	if _, err := io.WriteString(p.orders, what+"\n"); err != nil {
		return 0, false
	}
	select {
	case line, alive := <-p.done:
		if alive {
			_, err := fmt.Sscanf(line, what+" %d", &id)
			require.NoError(p.t, err, line)
		}
		return id, alive
	case <-time.After(patience):
		p.t.Errorf("%s: no %s in %v", p.user, what, patience)
		return 0, false
	}
}

// publish tells it to commit a row and ring.
func (p *stressProcess) publish() uint64 {
	id, ok := p.order("publish")
	require.True(p.t, ok, "%s has ended", p.user)
	return id
}

func stressProcessMain(text string) error {
	var told stressTold
	if err := json.Unmarshal([]byte(text), &told); err != nil {
		return err
	}
	db, err := notify.Open(told.DSN)
	if err != nil {
		return err
	}
	stressOptions.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx := context.Background()
	failed := make(chan error, 2)
	if told.Listens {
		go func() { failed <- stressListen(ctx, db) }()
	}
	go func() { failed <- stressObey(ctx, db) }()
	return <-failed
}

// stressListen writes what it sees.
func stressListen(ctx context.Context, db *notify.DB) error {
	gate := notify.NewGate(db, stressTopic, stressOptions)
	head, err := persistently(ctx, gate.Head)
	for err == nil {
		var id uint64
		if id, err = largest(db)(ctx); err == nil {
			fmt.Println("seen", id)
			head, err = gate.Wait(ctx, head, time.Hour)
		}
	}
	return err
}

// stressObey does what it is told, until the test's process closes the other end.
func stressObey(ctx context.Context, db *notify.DB) error {
	p := newStressProducer(db, stressOptions)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var id uint64
		var err error
		switch lines.Text() {
		case "join":
			p.join(ctx)
		case "publish":
			id = p.send(ctx, new(stressBoard))
		case "rung":
			id = uint64(p.rings())
		default:
			err = errors.New("no such order")
		}
		if err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Println(lines.Text(), id)
	}
	return lines.Err()
}
