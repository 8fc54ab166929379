package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// hintAfter is how long a command may take to end before mqnotify tells the user that a second signal ends it at once. Until
// then all signals count as one, because timeout(1) signals the process and then its process group, on a busy machine a while
// later.
const hintAfter = 700 * time.Millisecond

// stopOnSignals returns a context that ends at the first SIGINT or SIGTERM. The next signal after the hint ends the process. The
// goroutine that waits for signals runs until the process ends. Ctrl-Z also stops the running commands.
func (a *app) stopOnSignals(ctx context.Context) context.Context {
	// With SIGPIPE caught, a write to a pipe without a reader fails instead of ending the process. If it were ignored, child
	// processes would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	a.child.stopWithUs()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM)
	if !signal.Ignored(os.Interrupt) { // as in the background of a script
		signal.Notify(signals, os.Interrupt)
	}
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
		for len(signals) > 0 { // drop signals from before the hint, which arrived while this process was not scheduled
			<-signals
		}
		a.note("mqnotify: finishing the work in hand; a second signal stops at once\n")
		<-signals
		a.child.kill()
		a.note("mqnotify: stopped at once: the work in hand is not finished\n")
		os.Exit(exitFailed)
	}()
	return ctx
}
