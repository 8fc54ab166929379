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
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
)

const (
	// settleAfter is how long an outcome waits for others to be written down with it,
	// while no handler waits for a task.
	settleAfter = 20 * time.Millisecond
	// coalesceFor is how long new claims may take to be written down with each other: the
	// next transaction waits for them if handlers were faster than that before.
	coalesceFor = 200 * time.Microsecond
	// waitBound bounds a wait in the waiter, which costs nothing: the polls are those of PollInterval.
	waitBound = time.Minute
	// keyAgain is the wait before an outcome is tried again whose unique key another session has locked. Each try
	// delays all else by 2 s.
	keyAgain = time.Second
)

// busyPoll is how often a worker polls for tasks that are due although it always finds others, or although its waiter has
// not begun. Tests make it shorter, because they wait until such a poll is over.
var busyPoll = time.Second

// dispatcher is a worker while a session lives: one goroutine makes all statements, and
// a second one waits to be woken.
type dispatcher struct {
	*worker
	store *store
	pool  *pool
	wakes chan struct{} // one slot: tasks were entered
	idle  chan struct{} // one slot: the waiter is to wait
	// cancels has one slot: tasks were cancelled.
	cancels chan struct{}
	heard   atomic.Bool // the waiter has begun: no task that is entered from now on goes unheard

	empty    bool      // the last claim found less than there was room for
	ready    bool      // the last poll found a task that is ready
	worked   time.Time // when there was something to do
	polled   time.Time // when it last polled for what falls due
	pollTook time.Duration
	woken    bool // tasks were entered, and it has not claimed since: it polls after the claim
	nextPoll time.Time
	due      time.Time     // when something does; zero for nothing
	recurs   bool          // there are recurring tasks
	alone    Task          // a task that is handled alone, and waits until the worker has no other
	aloneTo  time.Time     // until when it waits
	patience time.Duration // how long that is; it doubles each time that the wait was too short
	renewed  time.Time     // when claims were renewed last; zero for not in this session, which begins with it
	lapsing  bool          // there are cancelled tasks whose claims may lapse

	// Growing waits for what another session has locked, for a moment or for as long as a transaction lasts: contended
	// when no task can be claimed though one is ready, blocked when a task that is due can't be made ready.
	contended, blocked backoff.BackOff
	overdue            time.Time // until when what is overdue is left alone
	again              time.Time // when outcomes are tried again that had to wait for another session's transaction
}

// run works until ctx has ended and all is written down, or the session is lost.
func (d *dispatcher) run(ctx context.Context, waiter, cancels core.Waiter) error {
	waits, cancel := context.WithCancelCause(ctx)
	// A worker that stops still learns of cancelled tasks, while its handlers run.
	hearing, deaf := context.WithCancel(context.WithoutCancel(ctx))
	var waiters sync.WaitGroup
	waiters.Go(func() { cancel(d.wait(waits, waiter)) })
	waiters.Go(func() { cancel(d.hearCancels(hearing, cancels)) })
	defer waiters.Wait()
	defer deaf()
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
			return d.giveUp(ctx) // those that were cancelled just before
		}
		if d.mayRest(ctx, now) {
			if err := d.rest(ctx, waits); err != nil || ctx.Err() != nil {
				return err
			}
			continue
		}
		// Idle: the session is watched meanwhile.
		if err := d.pause(ctx, waits, now); err != nil {
			return err
		}
	}
}

// step does what it is time for; worked tells that there may be more.
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
	if err == nil && stopping {
		d.tell(ctx)
	}
	return worked, err
}

// tell tells other workers of tasks that this one gives back. Otherwise they find them by polling. A failure must not
// prevent the worker from stopping.
func (d *dispatcher) tell(ctx context.Context) {
	if !d.pool.told() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hintPatience)
	defer cancel()
	if err := d.queue.db.Wake(ctx, schema.TaskTable); err != nil {
		d.log.WarnContext(ctx, "other workers find the tasks that this one gives back later, by polling", "error", err)
	}
}

// hintPatience is how long a worker that stops waits for others to be woken.
const hintPatience = 5 * time.Second

// coalesce waits for quick handlers: one transaction for all of them costs about what one
// for the first of them would.
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

// round writes down outcomes and claims tasks, if it is time for either.
func (d *dispatcher) round(ctx context.Context, stopping bool) (worked bool, err error) {
	if !time.Now().Before(d.again) {
		d.pool.bringBack()
	}
	now := d.pool.state(d.options.Batch)
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
	d.store.busy, d.store.surplus = now.claims > 0 && !d.store.ordered, max(0, want-now.idle)
	outcomes := d.pool.pending()
	var claimed []Task
	var started time.Time
	locked, err := d.withoutRetry(now.claims > 0 || !stopping, func() (err error) {
		claimed, started, err = d.store.round(ctx, outcomes, want)
		return err
	})
	if locked {
		d.pool.putOff()
		d.again = time.Now().Add(keyAgain)
		return true, nil
	}
	if err != nil {
		return false, err
	}
	d.pool.take(claimed, started, d.options.Visibility)
	d.pool.wrote(outcomes)
	d.pool.owes(d.store.ordered && stopping && len(outcomes) > 0) // the next is another worker's
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
		d.pollBy(again) // a poll is slow where a full scan is
		return true, nil
	}
	// Only now is it known when to wake by itself.
	ready, err := d.poll(ctx)
	switch {
	case ready && d.store.unscanned:
		d.pollBy(d.store.scanDue())
	case ready: // another worker has it in hand, or vanishes with it
		d.nextPoll = time.Now().Add(d.contended.NextBackOff())
	default:
		d.contended.Reset()
	}
	return true, err
}

// postpone keeps a task for when nothing else is in hand. The worker claims no other until then, or until its patience
// ends, because a long task must not keep it from all others. Then it works as before for as long again.
func (d *dispatcher) postpone(ctx context.Context, t Task) error {
	was, err := d.store.postpone(ctx, t, 2*d.patience)
	if was {
		d.alone, d.aloneTo = t, time.Now().Add(d.patience)
		d.queue.changed() // others learn when it is theirs if this worker takes longer
	}
	return err
}

// takeAlone claims the task that was postponed. Nothing else is in hand.
func (d *dispatcher) takeAlone(ctx context.Context) error {
	t, started := d.alone, time.Now()
	d.alone, d.patience = Task{}, firstPatience(d.options.Visibility)
	was, err := d.store.claimPostponed(ctx, t)
	if was {
		t.Attempt++
		d.pool.take([]Task{t}, started, d.options.Visibility)
	}
	return err
}

// pollBy makes the next poll no later than at the time.
func (d *dispatcher) pollBy(at time.Time) {
	if at.Before(d.nextPoll) {
		d.nextPoll = at
	}
}

// withoutRetry runs f. If brief is set, a transaction whose lock wait times out is not run again: the claims could not be
// renewed meanwhile.
func (d *dispatcher) withoutRetry(brief bool, f func() error) (locked bool, err error) {
	d.store.brief = brief
	defer func() { d.store.brief = false }()
	if err = f(); brief && server.Is(err, server.ErrLockWaitTimeout) {
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

// shortError is a handler's error with the first line alone as its text. It stays an error in the log, so that a
// slog.Handler can tell one kind from another.
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

// late tells of outcomes that came too late: of those whose claims were not trusted any
// more when they were written down.
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

// renew renews the claims when it is time.
func (d *dispatcher) renew(ctx context.Context) error {
	if time.Since(d.renewed) < d.options.Visibility/3 {
		return nil
	}
	d.renewed = time.Now()
	tasks := d.pool.claims(false)
	if len(tasks) == 0 {
		return nil
	}
	lost, started, err := d.store.renew(ctx, tasks)
	if err != nil {
		return err
	}
	for _, t := range d.pool.renewed(tasks, lost, started, d.options.Visibility) {
		d.log.WarnContext(ctx, "the claim on a task is lost", "task", t.ID, "attempt", t.Attempt)
	}
	return nil
}
