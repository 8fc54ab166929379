package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// hintAfter is how long a command may take to end before the user is told that it can be ended
// at once. Until then all signals are one: timeout(1) sends its to the process, and then to the
// group that it is in, which on a busy machine may be a good while later.
const hintAfter = 700 * time.Millisecond

// stopOnSignals returns a context that ends at the first SIGINT or SIGTERM; the
// next after the hint ends the process. The goroutine that waits for them lives as long as the
// process does. Ctrl-Z stops the commands that run, too.
func (a *app) stopOnSignals(ctx context.Context) context.Context {
	// Noted rather than ignored, which children would inherit: a write to a pipe that
	// has no reader then fails, instead of ending the process in the middle.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	a.child.stopWithUs()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	ctx, stop := context.WithCancel(ctx)
	go func() {
		a.child.passed(<-signals)
		stop()
		for hint := time.After(hintAfter); hint != nil; {
			select {
			case <-signals:
			case <-hint:
				hint = nil
			}
		}
		for len(signals) > 0 { // signals from before the hint was due, while we stood still
			<-signals
		}
		a.note("mqnotify: finishing what is in hand; once more stops at once\n")
		<-signals
		a.child.kill()
		a.note("mqnotify: stopped at once: what was in hand is not finished\n")
		os.Exit(exitFailed)
	}()
	return ctx
}

// lingering returns a context that ends d after ctx does: for what is in hand. The
// caller calls release when done with it.
func lingering(ctx context.Context, d time.Duration) (_ context.Context, release context.CancelFunc) {
	longer, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		select {
		case <-time.After(d):
			cancel(context.Cause(ctx))
		case <-longer.Done():
		}
	})
	return longer, func() {
		stop()
		cancel(context.Canceled)
	}
}
