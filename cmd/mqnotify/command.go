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

// killAfter is the time between SIGTERM and SIGKILL.
const killAfter = 5 * time.Second

// restPatience limits the wait for the end of a command's stderr after the command has ended. Only a program that the command
// left running keeps stderr open for longer.
const restPatience = 500 * time.Millisecond

// command is a program that consume, work or listen runs for each message, task or notification: the payload is on its
// stdin, the rest in its environment.
type command struct {
	args     []string
	patience time.Duration // between SIGTERM and SIGKILL
	*app
}

// child is the set of running commands. Safe for concurrent use.
type child struct {
	mu       sync.Mutex
	commands map[*supervisor.Command]bool
	passes   bool      // the commands get the first signal
	got      os.Signal // that signal; nil until it arrives
}

// start starts a command and adds it to the set. The caller calls ended when the command has ended.
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
	if c.got != nil { // the signal arrived just before
		cmd.Signal(c.got)
	}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.commands, cmd)
	}, nil
}

// passOn makes passed send the first signal to the commands.
func (c *child) passOn() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.passes = true
}

// passed sends the first signal to the commands, if passOn was called. It ignores further signals.
func (c *child) passed(s os.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.passes || c.got != nil {
		return
	}
	c.got = s
	c.signal(s)
}

// signal sends a signal to all running commands. The caller holds mu.
func (c *child) signal(s os.Signal) {
	for cmd := range c.commands {
		cmd.Signal(s)
	}
}

// kill kills all running commands.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for cmd := range c.commands {
		cmd.Kill()
	}
}

// findCommand returns an error if the command does not exist. Callers check this before they take a lock or a task.
func findCommand(args []string) error {
	if len(args) == 0 {
		return errNoCommand
	}
	if _, err := exec.LookPath(args[0]); err != nil {
		return fmt.Errorf("find the command: %w", err)
	}
	return nil
}

func (c *command) handle(ctx context.Context, m consumer.Message) error {
	variables, err := messageVariables(m)
	if err != nil {
		return err
	}
	return c.run(ctx, m.Payload, variables)
}

// run runs the command, with additional environment variables, and returns when it has ended. It returns nil if the command
// exited with 0 and ctx had not ended it. Else the error has the end of the command's stderr.
func (c *command) run(ctx context.Context, stdin []byte, variables []string) error {
	cmd := supervisor.New(c.args, c.patience)
	cmd.Stdin = bytes.NewReader(stdin)
	// With a pipe made here, Wait does not wait until programs that the command leaves running have closed stderr.
	stderr, writes, err := os.Pipe()
	if err != nil {
		return err
	}
	cmd.Stdout, cmd.Stderr = c.out, writes
	cmd.Env = c.childEnv(variables)
	cmd.WaitDelay = killAfter // a program that left the command's process group may keep its stdout open
	ended, err := c.child.start(cmd)
	_ = writes.Close() // the command has its own copy
	if err != nil {
		_ = stderr.Close()
		return startError(err, c.args, cmd.Env)
	}
	defer ended()
	said, read := &lastWords{to: c.err}, make(chan struct{})
	go func() { // ends when the last program that the command started closes stderr
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
	if errors.Is(err, exec.ErrWaitDelay) { // the command exited with 0, but another program keeps its stdout open
		err = nil
	}
	if !notEnded() && err == nil { // ctx ended the command: it has failed, whatever its exit code
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

// lastWords copies a command's stderr and keeps the end of it for the error.
type lastWords struct {
	to   io.Writer
	mu   sync.Mutex
	last []byte
}

// mostWords is how many bytes of stderr the error contains. lastWords keeps more, so that no password is cut in two before it
// is redacted.
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

// messageVariables returns the MQNOTIFY_... variables of a message.
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
		if value := m.Headers[name]; !strings.ContainsRune(value, 0) { // a variable can't contain a zero byte
			variables = append(variables, "MQNOTIFY_HEADER_"+variableName(name)+"="+value)
		}
	}
	return variables, nil
}

// variableName converts a header's name: "content-type" becomes CONTENT_TYPE.
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
