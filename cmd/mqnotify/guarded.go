package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"slices"
	"time"
)

// exitError ends the process with a code, and nothing more is reported: a command that
// was run has said why it failed.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// guarded runs a command under a guard, with the process's own streams, to its end. Its
// exit code, if it is not 0, comes as an *exitError. Signals are passed on to it. When
// lost is closed it gets SIGTERM, and SIGKILL when patience has passed; nil is never.
func (a *app) guarded(ctx context.Context, args, variables []string, lost <-chan struct{}, patience time.Duration) error {
	// The kernel ends the command with the thread that started it, where it can.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(args[0], args[1:]...) //nolint:noctx // it is ended below, by the signal that ended us
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	cmd.Env = append(slices.Clip(a.environ), variables...)
	cmd.WaitDelay = killAfter
	setGroup(cmd)
	cmd.Cancel = nil
	endWithUs(cmd)
	a.child.passOn()
	if ctx.Err() != nil {
		return fmt.Errorf("the command was not run: %w", context.Cause(ctx))
	}
	others := make(chan os.Signal, 1)
	for _, s := range passedOn {
		if !signal.Ignored(s) { // as under nohup
			signal.Notify(others, s)
		}
	}
	defer signal.Stop(others)
	gone, err := a.child.start(cmd)
	if err != nil {
		return err
	}
	defer gone()
	ended := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		a.watch(ctx, cmd.Process, others, lost, ended, patience)
	}()
	err = cmd.Wait()
	close(ended)
	<-watched
	var failed *exec.ExitError
	if err == nil || errors.As(err, &failed) {
		if code := exitCode(cmd.ProcessState); code != 0 {
			return &exitError{code: code}
		}
		return nil
	}
	return fmt.Errorf("%s: %w", args[0], err)
}

// watch passes signals on to the command until it has ended, and ends it when the lock
// is lost.
func (a *app) watch(ctx context.Context, process *os.Process, others <-chan os.Signal, lost, ended <-chan struct{}, patience time.Duration) {
	stopped := ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case <-ended:
			return
		case s := <-others:
			signalGroup(process, s)
		case <-stopped:
			stopped = nil
			a.child.passed(terminate)
		case <-lost:
			lost = nil
			a.log.ErrorContext(ctx, "the lock is lost: the command is ended")
			signalGroup(process, terminate)
			late = time.After(patience)
		case <-late:
			killGroup(process)
		}
	}
}
