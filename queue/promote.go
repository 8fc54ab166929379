package queue

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/notify"
)

// lockedWaits returns the waits while other sessions have rows locked.
func lockedWaits() backoff.BackOff {
	return &notify.Fibonacci{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.5}
}

// poll reads when the next task falls due, and reports whether a task is ready.
func (d *dispatcher) poll(ctx context.Context) (ready bool, err error) {
	begun := time.Now()
	v, err := d.store.poll(ctx)
	if err != nil {
		return false, err
	}
	d.pollTook = time.Since(begun)
	each := d.options.PollInterval
	if !d.heard.Load() {
		each = min(each, busyPoll)
	}
	d.polled = time.Now()
	d.nextPoll = d.polled.Add(each)
	d.due = time.Time{}
	if v.any {
		d.due = d.polled.Add(max(0, v.due))
		if d.due.Before(d.overdue) {
			d.due = d.overdue
		}
	}
	d.recurs, d.lapsing, d.ready = v.recurs, v.cancels, v.ready
	return v.ready, nil
}

// promote polls if that is due, makes tasks ready that have fallen due, and enters recurring
// tasks.
func (d *dispatcher) promote(ctx context.Context, stopping bool) error {
	if stopping {
		return nil
	}
	now := time.Now()
	if !now.Before(d.nextPoll) || !d.empty && !d.woken && now.Sub(d.polled) >= busyPoll {
		ready, err := d.poll(ctx)
		if err != nil {
			return err
		}
		if ready {
			d.empty = false
		}
	}
	if d.due.IsZero() || now.Before(d.due) {
		return nil
	}
	ready := 0
	_, err := d.withoutRetry(func() (err error) { // locked tasks stay overdue
		if d.lapsing {
			ended, err := d.store.endLapsed(ctx)
			if err != nil {
				return err
			}
			if ended > 0 {
				d.queue.changed() // some may be ready now
				d.empty = false
			}
		}
		if ready, err = d.store.promote(ctx); err != nil || !d.recurs {
			return err
		}
		entered, err := d.store.enterDue(ctx)
		ready += entered
		return err
	})
	if err != nil {
		return err
	}
	d.overdue = time.Time{}
	soon := d.nextPoll // a ready task that is locked may need it
	head, err := d.poll(ctx)
	if err != nil {
		return err
	}
	if soon.Before(d.nextPoll) {
		d.nextPoll = soon
	}
	if d.store.ordered && head { // the task before it may have died
		d.empty = false
	}
	if ready > 0 {
		d.empty = false
		d.blocked.Reset()
		if d.alone.ID != 0 || d.pool.state(d.options.Batch).free < ready {
			d.queue.changed() // others may be free for it
		}
	}
	if !d.due.IsZero() && !d.due.After(time.Now()) { // another worker is processing the overdue task
		d.overdue = time.Now().Add(d.blocked.NextBackOff())
		d.due = d.overdue
	}
	return nil
}
