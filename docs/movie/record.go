package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// scene is a command that is typed.
type scene struct {
	terminal int
	text     string
	until    string // what it prints when it is at work; empty: it ends
	then     string // what the other terminal prints of it
}

// line is a line of a terminal: what was typed, or printed.
type line struct {
	terminal int
	text     string
	at       time.Duration // when it is there, or its typing begins
	typed    bool
}

// recorder writes down what commands print.
type recorder struct {
	mu    sync.Mutex
	lines []line
	shift time.Duration // how much of the movie's time passed while nothing ran
	began time.Time
}

// patience is how long a command may take for what it is to print.
const patience = 20 * time.Second

// record runs the scenes and returns the lines, and how long it took.
func record(ctx context.Context, scenes []scene) ([]line, time.Duration, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &recorder{began: time.Now()}
	var running []*exec.Cmd
	defer func() {
		for _, cmd := range running {
			_ = cmd.Wait() // it was stopped
		}
	}()
	defer cancel() // before the waits
	for _, s := range scenes {
		r.wait(pause)
		r.typed(s)
		cmd := exec.CommandContext(ctx, "sh", "-c", s.text) //nolint:gosec // the scenes above
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = patience
		out := &printed{recorder: r, terminal: s.terminal}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			return nil, 0, err
		}
		if s.until == "" {
			if err := cmd.Wait(); err != nil {
				return nil, 0, fmt.Errorf("%s: %w", s.text, err)
			}
		} else {
			running = append(running, cmd)
		}
		if err := r.await(ctx, s); err != nil {
			return nil, 0, err
		}
	}
	return r.lines, r.now(), nil
}

// now is the movie's time.
func (r *recorder) now() time.Duration { return time.Since(r.began) + r.shift }

func (r *recorder) wait(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.shift += d
}

func (r *recorder) typed(s scene) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, line{s.terminal, s.text, r.now(), true})
	r.shift += time.Duration(len(s.text)) * perKey
}

// await returns when the scene's expected output has been printed.
func (r *recorder) await(ctx context.Context, s scene) error {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !r.has(s.until) || !r.has(s.then) {
		select {
		case <-tick.C:
		case <-late:
			return fmt.Errorf("%s: it did not print what was expected", s.text)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

func (r *recorder) has(text string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return text == "" || slices.ContainsFunc(r.lines, func(l line) bool { return !l.typed && strings.Contains(l.text, text) })
}

// printed collects what a command prints.
type printed struct {
	*recorder
	terminal int
	rest     []byte
}

func (p *printed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		text, more, whole := bytes.Cut(p.rest, []byte("\n"))
		if !whole {
			return len(b), nil
		}
		p.lines = append(p.lines, line{p.terminal, string(text), p.now(), false})
		p.rest = more
	}
}
