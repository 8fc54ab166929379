package queue

import (
	"context"
	"errors"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// mayRest reports whether there was nothing to do for long, and everything that comes next causes a hint.
func (d *dispatcher) mayRest(ctx context.Context, now poolState) bool {
	if now.claims > 0 || now.outcomes > 0 || now.deferred > 0 || d.alone.ID != 0 || d.ready || time.Now().Before(d.unanswered) {
		d.worked = time.Now()
	}
	return ctx.Err() == nil && d.empty && d.heard.Load() && time.Since(d.worked) >= waiting.Unused &&
		(d.due.IsZero() || time.Until(d.due) > waiting.Unused)
}

// rest ends the session, because an idle connection costs the server a thread, and reconnects when there may be
// something to do. The waiter's query also changes with other workers' claims, so that the worker notices when a claim lapses.
func (d *dispatcher) rest(ctx, waits context.Context) error {
	before := d.store.session.Capabilities().Version
	_ = d.store.session.Close()
	due := make(<-chan time.Time)
	if !d.due.IsZero() {
		timer := time.NewTimer(time.Until(d.due))
		defer timer.Stop()
		due = timer.C
	}
	poke(d.idle)
	select {
	case <-d.wakes:
		d.empty, d.woken = false, true
	case <-due:
	case <-ctx.Done():
		return nil
	case <-waits.Done():
		return context.Cause(waits)
	}
	session, err := core.NewSession(ctx, d.queue.db, core.SessionOptions{IdleTimeout: d.worker.idle})
	if err != nil {
		return err
	}
	d.store.session, d.worked = session, time.Now()
	if session.Capabilities().Version != before {
		return errAnotherServer
	}
	return nil
}

// errAnotherServer makes the worker read the server's abilities again.
var errAnotherServer = errors.New("the session reached another server")

// wait wakes an idle dispatcher when the query that the worker polls has a new value.
func (d *dispatcher) wait(ctx context.Context, waiter core.Waiter) error {
	head, err := waiter.Head(ctx)
	if err != nil {
		return err
	}
	d.heard.Store(true)
	poke(d.wakes)
	for {
		select {
		case <-d.idle:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		// The head was read before the last claim, which found no task: a task that was entered after that claim ends the wait.
		for woken := false; !woken; {
			now, err := waiter.Wait(ctx, head, waitBound)
			if err != nil {
				return err
			}
			woken = now != head
			head = now
		}
		poke(d.wakes)
	}
}

// pause returns when there may be something to do.
func (d *dispatcher) pause(ctx, waits context.Context, now poolState) error {
	stopping := ctx.Err() != nil
	next := d.nextPoll
	if stopping { // it no longer polls for tasks
		next = time.Now().Add(d.options.PollInterval)
	}
	if rests := d.worked.Add(waiting.Unused); rests.After(time.Now()) && rests.Before(next) {
		next = rests
	}
	earlier := func(t time.Time) {
		if t.Before(next) {
			next = t
		}
	}
	if d.empty && !stopping {
		poke(d.idle)
	}
	if !d.due.IsZero() && !stopping {
		earlier(d.due)
	}
	if now.outcomes > 0 {
		earlier(now.oldest.Add(settleAfter))
	}
	if now.deferred > 0 {
		earlier(d.again)
	}
	if d.alone.ID != 0 {
		earlier(d.aloneTo)
	}
	if now.claims > 0 || time.Now().Before(d.unanswered) {
		earlier(d.renewed.Add(d.options.Visibility / 3))
	}
	timer := time.NewTimer(max(0, time.Until(next)))
	defer timer.Stop()
	stop, failed := ctx.Done(), waits.Done()
	if stopping {
		stop, failed = nil, nil
	}
	select {
	case <-d.wakes:
		d.empty, d.woken = false, true
	case <-d.pool.changed:
	case <-d.cancels:
		poke(d.cancels) // for the next step
	case <-timer.C:
	case <-d.store.session.Lost():
		return d.store.session.Err()
	case <-stop:
	case <-failed: // the waiter has ended, or ctx
		if ctx.Err() == nil {
			return context.Cause(waits)
		}
	}
	return nil
}
