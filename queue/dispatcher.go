package queue

import (
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// settleAfter is how long an outcome waits to be stored together with others,
	// while no handler waits for a task.
	settleAfter = 20 * time.Millisecond
	// coalesceFor is how long the next transaction waits for the outcomes of new claims, so that it stores them
	// together, if handlers were faster than that before.
	coalesceFor = 200 * time.Microsecond
	// waitBound bounds a wait in the waiter, which costs nothing. PollInterval determines the polls.
	waitBound = time.Minute
	// keyAgain is the wait before an outcome is tried again if another session had locked its unique key.
	keyAgain = time.Second
)

// busyPoll is how often a worker polls for tasks that have fallen due although it always finds others, or although its waiter has
// not begun. Tests shorten it, because they wait for such a poll.
var busyPoll = time.Second

// dispatcher is the state of a worker while a session lives. One goroutine sends all statements;
// others wait for hints.
type dispatcher struct {
	*worker
	store *store
	pool  *pool
	wakes chan struct{} // has a value when tasks were entered; capacity 1
	idle  chan struct{} // has a value when the waiter should wait; capacity 1
	// cancels has a value when tasks were cancelled; capacity 1.
	cancels chan struct{}
	heard   atomic.Bool // the waiter has begun: a hint comes for every task that is entered from now on

	empty    bool      // the last claim found fewer tasks than it wanted
	ready    bool      // the last poll found a task that is ready
	worked   time.Time // when there was last something to do
	polled   time.Time // when it last polled for tasks that fall due
	pollTook time.Duration
	woken    bool // tasks were entered, and no claim was made since: the next poll comes after the claim
	nextPoll time.Time
	due      time.Time     // when the next task falls due; zero if none does
	recurs   bool          // there are recurring tasks
	alone    Task          // a task that must be handled alone, and waits until the worker has no other
	aloneTo  time.Time     // until when it waits
	patience time.Duration // how long it waits; doubles whenever the wait was too short
	renewed  time.Time     // when claims were last renewed; zero before the first time, so that a session begins with a renewal
	lapsing  bool          // there are cancelled tasks whose claims may lapse
	left     bool          // the worker stops, and has woken others
	over     func() bool   // reports whether StopTimeout has passed

	// Growing waits while another session has rows locked, for a moment or for the length of a transaction: contended
	// if no task can be claimed though one is ready, blocked if a task that is due can't be made ready.
	contended, blocked backoff.BackOff
	overdue            time.Time // until when overdue tasks are not tried
	again              time.Time // when deferred outcomes are stored again; another session had their unique keys locked
}

// run works until ctx has ended and all outcomes are stored, or the session is lost.
func (d *dispatcher) run(ctx context.Context, waiter, cancels core.Waiter) error {
	waits, cancel := context.WithCancelCause(ctx)
	// A worker that stops must still learn of cancelled tasks while its handlers run.
	hearing, stopHearing := context.WithCancel(context.WithoutCancel(ctx))
	var waiters sync.WaitGroup
	waiters.Go(func() { cancel(d.wait(waits, waiter)) })
	waiters.Go(func() { cancel(d.hearCancels(hearing, cancels)) })
	defer waiters.Wait()
	defer stopHearing()
	defer cancel(nil)
	d.worked = time.Now()
	for {
		var now poolState
		err := d.store.stay(func() (err error) {
			for {
				worked := true
				for worked && err == nil {
					if worked, err = d.step(ctx); worked {
						d.worked = time.Now()
						d.coalesce()
					}
				}
				now = d.pool.state(d.options.Batch)
				if err != nil || d.empty || ctx.Err() != nil {
					return err
				}
				if err := d.pause(ctx, waits, now); err != nil {
					return err
				}
			}
		})
		if err != nil {
			return err
		}
		if ctx.Err() != nil && now.claims == 0 && now.outcomes == 0 && now.deferred == 0 {
			return d.giveUp(ctx) // tasks that were cancelled in the last moment
		}
		if d.mayRest(ctx, now) {
			if err := d.rest(ctx, waits); err != nil || ctx.Err() != nil {
				return err
			}
			continue
		}
		// Idle: the session is also checked for its loss.
		if err := d.pause(ctx, waits, now); err != nil {
			return err
		}
	}
}

// step does everything that is due. worked means that there may be more to do.
func (d *dispatcher) step(ctx context.Context) (worked bool, err error) {
	stopping := ctx.Err() != nil
	if stopping {
		d.pool.release()
	}
	if err := d.renew(ctx); err != nil {
		return false, err
	}
	select {
	case <-d.cancels:
		if err := d.giveUp(ctx); err != nil {
			return false, err
		}
	default:
	}
	if err := d.promote(ctx, stopping); err != nil {
		return false, err
	}
	d.woken = false
	worked, err = d.round(ctx, stopping)
	if err == nil && stopping && (worked || !d.left) {
		d.left = true
		d.queue.changed() // others may take the tasks that are given back, and learn when those fall due that failed here
	}
	return worked, err
}

// coalesce waits for quick handlers, because one transaction for all their outcomes costs about as much as one
// for the first of them.
func (d *dispatcher) coalesce() {
	now := d.pool.state(d.options.Batch)
	if !now.quick || now.claims == 0 {
		return
	}
	late := time.NewTimer(coalesceFor)
	defer late.Stop()
	for now.claims > 0 {
		select {
		case <-d.pool.changed:
		case <-late.C:
			return
		}
		now = d.pool.state(d.options.Batch)
	}
}

// round stores outcomes and claims tasks, if either is due.
func (d *dispatcher) round(ctx context.Context, stopping bool) (worked bool, err error) {
	now := d.pool.state(d.options.Batch)
	if now.deferred > 0 && !time.Now().Before(d.again) {
		if err := d.putOff(ctx, false); err != nil {
			return false, err
		}
		now = d.pool.state(d.options.Batch)
	}
	if d.alone.ID != 0 && now.claims == 0 && now.outcomes == 0 && !stopping {
		return true, d.takeAlone(ctx)
	}
	if d.alone.ID != 0 && !time.Now().Before(d.aloneTo) {
		d.alone, d.patience = Task{}, min(2*d.patience, time.Hour)
	}
	want := 0
	if now.wanting && !stopping && d.alone.ID == 0 {
		want = min(now.free, d.options.Batch)
	}
	due := now.outcomes > 0 && (now.wanting || stopping || now.outcomes >= d.options.Batch || time.Since(now.oldest) >= settleAfter)
	if !due && (want == 0 || d.empty) {
		return false, nil
	}
	if d.store.ordered {
		want = min(want, 1)
	}
	if d.atOnce > 0 {
		want = min(want, d.atOnce)
	}
	d.store.busy, d.store.surplus = now.claims > 0 && !d.store.ordered, max(0, want-now.idle)
	outcomes := d.pool.pending()
	var claimed []Task
	var started time.Time
	locked, err := d.withoutRetry(func() (err error) {
		claimed, started, err = d.store.round(ctx, outcomes, want)
		return err
	})
	if locked {
		return true, d.putOff(ctx, true)
	}
	d.limitNext(want, err)
	if err != nil {
		return false, err
	}
	d.pool.take(claimed, started, d.options.Visibility)
	d.pool.wrote(outcomes)
	if slices.ContainsFunc(outcomes, func(o outcome) bool { return o.kind == wasCancelled }) {
		d.queue.changed() // the tasks may be ready now, and their unique keys are free
		d.empty = false
	}
	d.count(outcomes)
	if err := d.late(ctx, outcomes); err != nil {
		return false, err
	}
	for _, o := range outcomes {
		if at := time.Now().Add(o.wait); o.kind == wasFailed && (d.due.IsZero() || at.Before(d.due)) {
			d.due = at
		}
	}
	if want == 0 {
		return true, nil
	}
	if len(claimed) > 0 {
		d.contended.Reset()
	}
	was := d.empty
	d.empty = d.store.short
	if refused := d.store.refused; refused.ID != 0 {
		return true, d.postpone(ctx, refused)
	}
	if !d.empty || was {
		return true, nil
	}
	if again := d.polled.Add(scanShare * min(d.pollTook, scanMost)); d.pollTook > scanEach/scanShare && time.Now().Before(again) {
		d.pollBy(again) // a poll is slow if a full scan is
		return true, nil
	}
	// Poll only after the claim, because only now it is certain that nothing is ready before the next due time.
	ready, err := d.poll(ctx)
	switch {
	case ready && d.store.unscanned:
		d.pollBy(d.store.scanDue())
	case ready: // another worker is about to claim it, or vanishes with it
		d.nextPoll = time.Now().Add(d.contended.NextBackOff())
	default:
		d.contended.Reset()
	}
	return true, err
}

// limitNext limits how many tasks the next claim may ask for. The payloads of many tasks may take longer than a session waits
// for an answer: after a session that was lost during a claim the worker claims one task, and twice as many after every
// claim that succeeds. If one task takes longer, the next session waits longer, up to 32 times as long. It also notes that the lost
// claim may still be committed.
func (w *worker) limitNext(want int, err error) {
	switch {
	case err != nil && server.Number(err) == 0 && want > 0:
		if want == 1 {
			w.longer = min(w.longer+1, 5)
		}
		w.atOnce, w.unanswered = 1, time.Now().Add(w.options.Visibility)
	case err == nil && want > 0:
		w.longer = 0
		if w.atOnce *= 2; w.atOnce > w.options.Batch {
			w.atOnce = 0
		}
	}
}

// postpone leaves a task until the worker has no other. The worker claims no task until then, but only until its patience
// ends, because a long task must not keep it from all others. After that it works as before for the same time.
func (d *dispatcher) postpone(ctx context.Context, t Task) error {
	was, err := d.store.postpone(ctx, t, 2*d.patience)
	if was {
		d.alone, d.aloneTo = t, time.Now().Add(d.patience)
		d.queue.changed() // other workers learn when they may take it if this worker needs longer
	}
	return err
}

// takeAlone claims the postponed task. The worker has no other task.
func (d *dispatcher) takeAlone(ctx context.Context) error {
	t, started := d.alone, time.Now()
	d.alone, d.patience = Task{}, firstPatience(d.options.Visibility)
	was, err := d.store.claimPostponed(ctx, t)
	if was {
		t.Attempt++
		d.pool.take([]Task{t}, started, d.options.Visibility)
	}
	if err != nil {
		d.limitNext(1, err)
	}
	return err
}

// pollBy makes the next poll no later than at the time.
func (d *dispatcher) pollBy(at time.Time) {
	if at.Before(d.nextPoll) {
		d.nextPoll = at
	}
}

// withoutRetry runs f. f's transactions are not repeated after a lock wait timeout, because the claims could not be
// renewed meanwhile. locked reports such a timeout.
func (d *dispatcher) withoutRetry(f func() error) (locked bool, err error) {
	d.store.brief = true
	defer func() { d.store.brief = false }()
	if err = f(); server.Is(err, server.ErrLockWaitTimeout) {
		return true, nil
	}
	return false, err
}

func (d *dispatcher) count(outcomes []outcome) {
	for _, o := range outcomes {
		switch o.kind {
		case wasDone:
			d.note("done")
		case wasFailed:
			d.note("failed")
			d.log.Info("a task failed and will be tried again", "task", o.held.task.ID, "attempt", o.held.task.Attempt,
				"wait", o.wait, "error", shortError{firstLine(o.text), o.err})
		case wasCancelled:
			d.log.Info("the handler of a cancelled task has ended", "task", o.held.task.ID, "attempt", o.held.task.Attempt)
		case wasFatal:
			d.note("dead")
			d.log.Warn("a task failed for the last time", "task", o.held.task.ID, "attempt", o.held.task.Attempt, "error", shortError{firstLine(o.text), o.err})
		}
	}
}

// shortError is a handler's error with only the first line as its text. It wraps the error, so that a
// slog.Handler can distinguish its kind.
type shortError struct {
	line string
	err  error
}

func (e shortError) Error() string { return e.line }
func (e shortError) Unwrap() error { return e.err }

func firstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// late reports outcomes that came too late. It checks only those whose claims were no longer trusted
// when they were stored.
func (d *dispatcher) late(ctx context.Context, outcomes []outcome) error {
	now := time.Now()
	outcomes = slices.DeleteFunc(slices.Clone(outcomes), func(o outcome) bool { return now.Before(o.held.trusted) })
	if len(outcomes) == 0 {
		return nil
	}
	late, err := d.store.lateOf(ctx, outcomes)
	for _, t := range late {
		d.tooLate(t)
	}
	return err
}

// renew renews the claims if that is due.
func (d *dispatcher) renew(ctx context.Context) error {
	if time.Since(d.renewed) < d.options.Visibility/3 {
		return nil
	}
	d.renewed = time.Now()
	if err := d.giveBackLate(ctx); err != nil {
		return err
	}
	tasks := d.pool.claims(false)
	if len(tasks) == 0 {
		return nil
	}
	lost, locked, started, err := d.store.renew(ctx, tasks)
	if err != nil {
		return err
	}
	if len(locked) > 0 { // try again soon
		d.renewed = d.renewed.Add(min(0, keyAgain-d.options.Visibility/3))
		tasks = slices.DeleteFunc(tasks, func(t Task) bool { return slices.Contains(idsOf(locked), t.ID) })
	}
	for _, t := range d.pool.renewed(tasks, lost, started, d.options.Visibility) {
		d.log.WarnContext(ctx, "the claim on a task is lost", "task", t.ID, "attempt", t.Attempt)
	}
	return nil
}
