package queue

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/mqnotify/mqnotify/notify"
)

// lockedWaits are waits for what others have locked.
func lockedWaits() backoff.BackOff {
	return &notify.Fibonacci{Min: 10 * time.Millisecond, Max: time.Second, Jitter: 0.5}
}

// look finds out when something falls due, and whether a task is ready.
func (d *dispatcher) look(ctx context.Context) (ready bool, err error) {
	begun := time.Now()
	v, err := d.line.look(ctx)
	if err != nil {
		return false, err
	}
	d.lookTook = time.Since(begun)
	each := d.options.Look
	if !d.heard.Load() {
		each = min(each, busyLook)
	}
	d.looked = time.Now()
	d.nextLook = d.looked.Add(each)
	d.due = time.Time{}
	if v.any {
		d.due = d.looked.Add(max(0, v.due))
		if d.due.Before(d.overdue) {
			d.due = d.overdue
		}
	}
	d.recurs, d.lapsing, d.ready = v.recurs, v.cancels, v.ready
	return v.ready, nil
}

// promote looks when it is time, makes ready what has fallen due, and enters recurring
// tasks.
func (d *dispatcher) promote(ctx context.Context, stopping bool) error {
	if stopping {
		return nil
	}
	now := time.Now()
	if !now.Before(d.nextLook) || !d.empty && !d.woken && now.Sub(d.looked) >= busyLook {
		ready, err := d.look(ctx)
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
	_, err := d.briefly(true, func() (err error) { // what is locked stays overdue
		if d.lapsing {
			ended, err := d.line.endLapsed(ctx)
			if err != nil {
				return err
			}
			if ended > 0 {
				d.queue.changed() // some may be ready now
				d.empty = false
			}
		}
		if ready, err = d.line.promote(ctx); err != nil || !d.recurs {
			return err
		}
		entered, err := d.line.enterDue(ctx)
		ready += entered
		return err
	})
	if err != nil {
		return err
	}
	d.overdue = time.Time{}
	soon := d.nextLook // for what is ready and locked, perhaps
	head, err := d.look(ctx)
	if err != nil {
		return err
	}
	if soon.Before(d.nextLook) {
		d.nextLook = soon
	}
	if d.line.ordered && head { // what was before it may have died
		d.empty = false
	}
	if ready > 0 {
		d.empty = false
		d.blocked.Reset()
		if d.alone.ID != 0 || d.hands.state(d.options.Batch).free < ready {
			d.queue.changed() // others may be free for it
		}
	}
	if !d.due.IsZero() && !d.due.After(time.Now()) { // another worker has it in hand
		d.overdue = time.Now().Add(d.blocked.NextBackOff())
		d.due = d.overdue
	}
	return nil
}
