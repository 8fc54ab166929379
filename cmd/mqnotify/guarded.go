package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/mqnotify/mqnotify/internal/supervisor"
)

// exitError ends the process with a code, and nothing more is reported: a command that
// was run has said why it failed.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// guarded runs a command under a guard, with the process's own streams, until the command and all that is left of its process group have
// ended. Its exit code, if it is not 0, comes as an *exitError. Signals are passed on to it. The command is ended when lost is closed; nil
// never is.
func (a *app) guarded(ctx context.Context, cmd *supervisor.Command, variables []string, lost <-chan struct{}) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	cmd.Env = a.childEnv(variables)
	cmd.WaitDelay = killAfter
	name := cmd.Args[0]
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
	args := cmd.Args
	gone, err := a.child.start(cmd)
	if err != nil {
		return startError(err, args, cmd.Env)
	}
	defer gone()
	ended := make(chan struct{})
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		a.watch(ctx, cmd, others, lost, ended)
	}()
	err = cmd.Wait()
	close(ended)
	<-watched
	if failed := (*supervisor.ExitError)(nil); errors.As(err, &failed) {
		return &exitError{code: failed.Code}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, startError(err, args, cmd.Env))
	}
	return nil
}

// watch passes signals on to the command until it has ended, and ends it when the lock
// is lost.
func (a *app) watch(ctx context.Context, cmd *supervisor.Command, others <-chan os.Signal, lost, ended <-chan struct{}) {
	stopped := ctx.Done()
	for {
		select {
		case <-ended:
			return
		case s := <-others:
			cmd.Signal(s)
		case <-stopped:
			stopped = nil
			a.child.passed(terminate)
		case <-lost:
			lost = nil
			a.log.ErrorContext(ctx, "the lock is lost: the command is ended")
			cmd.End()
		}
	}
}
