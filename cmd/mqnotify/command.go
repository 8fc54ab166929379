package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/supervisor"
)

// killAfter is how long a command that was asked to end may take.
const killAfter = 5 * time.Second

// restPatience is how long the rest of what a command has written to stderr may take after its end. Only a program that it has
// left running makes it take longer.
const restPatience = 500 * time.Millisecond

// command is the program that consume runs for each message: payload on stdin,
// the rest in its environment. The message is handled when it exits with 0. listen
// runs it at each notification.
type command struct {
	args     []string
	patience time.Duration // between SIGTERM and SIGKILL
	*app
}

// child is the commands that run now.
type child struct {
	mu       sync.Mutex
	commands map[*supervisor.Command]bool
	passes   bool      // the first signal is passed on to them
	got      os.Signal // that signal, nil before
}

// start begins a command, which gets all signals from then on; the caller calls ended when
// it has ended.
func (c *child) start(cmd *supervisor.Command) (ended func(), err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	if c.commands == nil {
		c.commands = make(map[*supervisor.Command]bool)
	}
	c.commands[cmd] = true
	if c.got != nil { // it came just before
		cmd.Signal(c.got)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.commands, cmd)
	}, nil
}

// passOn makes the signal that ends mqnotify the command's.
func (c *child) passOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passes = true
}

// passed passes a signal on, the first one alone.
func (c *child) passed(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.passes || c.got != nil {
		return
	}
	c.got = s
	c.signal(s)
}

// signal sends a signal to the commands that run now. The caller holds mu.
func (c *child) signal(s os.Signal) {
	for cmd := range c.commands {
		cmd.Signal(s)
	}
}

// kill ends the commands that run now.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cmd := range c.commands {
		cmd.Kill()
	}
}

func (c *command) handle(ctx context.Context, m consumer.Message) error {
	variables, err := messageVariables(m)
	if err != nil {
		return err
	}
	return c.run(ctx, m.Payload, variables)
}

// run runs the command to its end, with these variables besides.
func (c *command) run(ctx context.Context, stdin []byte, variables []string) error {
	cmd := supervisor.New(c.args, c.patience)
	cmd.Stdin = bytes.NewReader(stdin)
	// A pipe of our own: a program that the command leaves running may go on to write to it.
	stderr, writes, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = c.out, writes
	cmd.Env = c.childEnv(variables)
	cmd.WaitDelay = killAfter // for a program that has left the command's group and still has its stdout
	ended, err := c.child.start(cmd)
	_ = writes.Close() // the command has it
	if err != nil {
		_ = stderr.Close()
		return startError(err, c.args, cmd.Env)
	}
	defer ended()
	said, read := &lastWords{to: c.err}, make(chan struct{})
	go func() { // until the last program that the command has started closes it
		defer close(read)
		_, _ = io.Copy(said, stderr)
		_ = stderr.Close()
	}()
	notEnded := context.AfterFunc(ctx, cmd.End)
	err = cmd.Wait()
	rest := time.NewTimer(restPatience)
	defer rest.Stop()
	select {
	case <-read:
	case <-rest.C:
	}
	if errors.Is(err, exec.ErrWaitDelay) { // it has exited with 0, and another program still has its stdout
		err = nil
	}
	if !notEnded() && err == nil { // a command that was ended has not succeeded, whatever its exit code
		err = ctx.Err()
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("%s was ended: %w", c.args[0], context.Cause(ctx))
		}
		err = fmt.Errorf("%s: %w", c.args[0], startError(err, c.args, cmd.Env))
		words := c.stderr.redact(said.words())
		if words = bytes.TrimSpace(words[max(0, len(words)-mostWords):]); len(words) > 0 {
			err = fmt.Errorf("%w: %s", err, words)
		}
	}
	return err
}

// lastWords keeps the end of what a command writes to stderr, for its error.
type lastWords struct {
	to   io.Writer
	mu   sync.Mutex
	last []byte
}

// mostWords is how many bytes of it the error has. More are kept, so that no password is cut in two before it is redacted.
const (
	mostWords = 2 << 10
	keptWords = 2 * mostWords
)

func (w *lastWords) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = append(w.last, p[max(0, len(p)-keptWords):]...)
	w.last = w.last[max(0, len(w.last)-keptWords):]
	return w.to.Write(p)
}

func (w *lastWords) words() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// messageVariables are the MQNOTIFY_... variables of a message.
func messageVariables(m consumer.Message) ([]string, error) {
	headers := m.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	text, err := json.Marshal(headers)
	if err != nil {
		return nil, err
	}
	variables := []string{
		"MQNOTIFY_ID=" + strconv.FormatUint(m.ID, 10),
		"MQNOTIFY_TOPIC=" + m.Topic,
		"MQNOTIFY_HEADERS=" + string(text),
	}
	if !m.CreatedAt.IsZero() {
		variables = append(variables, "MQNOTIFY_CREATED_AT="+m.CreatedAt.Format(timeFormat))
	}
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		if value := m.Headers[name]; !strings.ContainsRune(value, 0) { // which no variable can hold
			variables = append(variables, "MQNOTIFY_HEADER_"+variableName(name)+"="+value)
		}
	}
	return variables, nil
}

// variableName makes "content-type" CONTENT_TYPE.
func variableName(header string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, header)
}
