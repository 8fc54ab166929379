package bench

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
)

// fanout measures the time until the last of many listeners, each a process, has seen an inserted row. The floor is the same
// number of bare sessions that take and release one lock, one after the other.
func fanout(ctx context.Context, b *bench) error {
	if err := b.trigger(ctx); err != nil {
		return err
	}
	waiters := make([]*core.Auto, b.Listeners)
	heads := make([]core.Head, b.Listeners)
	bare := make([]*core.Session, b.Listeners)
	for i := range waiters {
		process, err := b.process()
		if err != nil {
			return err
		}
		waiters[i] = core.NewAuto(process, core.LargestID(b.topic, "id"), core.AutoOptions{Logger: quiet})
		b.atEnd(waiters[i].Close)
	}
	if err := atOnce(b.Listeners, func(i int) (err error) {
		if heads[i], err = waiters[i].Head(ctx); err != nil {
			return err
		}
		bare[i], err = core.NewSession(ctx, b.db, core.SessionOptions{IdleTimeout: time.Hour})
		return err
	}); err != nil {
		return err
	}
	for i := range bare {
		b.atEnd(bare[i].Close)
	}
	floors, err := b.floors(ctx)
	if err != nil {
		return err
	}
	var cascades, wakes []float64
	err = b.rounds(ctx, func(kept bool) error {
		if err := ask(ctx, floors.holder, "SELECT GET_LOCK(?, 0)", floors.name); err != nil {
			return err
		}
		cascade, err := last(ctx, b.Listeners, func(i int) error {
			return ask(ctx, bare[i], "SELECT GET_LOCK(?, 30) + RELEASE_LOCK(?)", floors.name, floors.name)
		}, func() error { return ask(ctx, floors.holder, "SELECT RELEASE_LOCK(?)", floors.name) })
		if err != nil {
			return err
		}
		wake, err := last(ctx, b.Listeners, func(i int) (err error) {
			heads[i], err = waiters[i].Wait(ctx, heads[i], 30*time.Second)
			return err
		}, func() error { _, err := floors.commit(ctx); return err })
		if kept {
			cascades, wakes = append(cascades, ms(cascade)), append(wakes, ms(wake))
		}
		return err
	})
	if err != nil {
		return err
	}
	b.add("a bare cascade", "ms", cascades, "")
	b.add("the last listener awake", "ms", wakes, "a bare cascade")
	return nil
}

// last returns the time from the action until the last of n waits has returned.
func last(ctx context.Context, n int, wait func(i int) error, act func() error) (time.Duration, error) {
	var waiting sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		waiting.Go(func() { errs <- wait(i) })
	}
	for range 10 + n/10 { // until all wait
		rest(ctx)
	}
	begun := time.Now()
	failed := act()
	waiting.Wait()
	took := time.Since(begun)
	close(errs)
	for err := range errs {
		failed = errors.Join(failed, err)
	}
	return took, failed
}

// atOnce runs f for every i below n, eight at a time.
func atOnce(n int, f func(i int) error) error {
	var running sync.WaitGroup
	errs := make([]error, n)
	slots := make(chan struct{}, 8)
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			errs[i] = f(i)
			<-slots
		})
	}
	running.Wait()
	return errors.Join(errs...)
}
