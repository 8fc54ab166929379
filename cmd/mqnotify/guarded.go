package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"

	"github.com/mqnotify/mqnotify/internal/supervisor"
)

// exitError ends the process with a code and without a message, because the command that mqnotify ran has reported its failure.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit code %d", e.code) }

// guarded runs the command of lock or once with the process's own streams, and returns when all processes of the command's
// process group have ended. It passes signals to the command, and ends the command when lost is closed (lost may be nil). It
// returns an exit code other than 0 as an *exitError.
func (a *app) guarded(ctx context.Context, cmd *supervisor.Command, variables []string, lost <-chan struct{}) error {
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.in, a.out, a.err
	cmd.Env = a.childEnv(variables)
	cmd.WaitDelay = killAfter
	a.child.passOn()
	if ctx.Err() != nil {
		return fmt.Errorf("the command was not run: %w", context.Cause(ctx))
	}
	others := make(chan os.Signal, 1)
	for _, s := range passedOn {
		if !signal.Ignored(s) { // nohup ignores SIGHUP
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
		return fmt.Errorf("%s: %w", args[0], startError(err, args, cmd.Env))
	}
	return nil
}

// watch passes signals to the command until it has ended, and ends it when the lock is lost.
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
