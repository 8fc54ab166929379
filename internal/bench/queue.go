package bench

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/queue"
)

const (
	workers   = 4
	bareClaim = "a bare INSERT, claim and DELETE"
)

// tasks measures the time of a task to the handler of an idle worker, and how many tasks a second
// workers do that empty a queue. The floor is a bare table, and the same number of connections that
// claim from it.
func tasks(ctx context.Context, b *bench) error {
	if err := queue.Create(ctx, b.db, b.topic, queue.Options{}); err != nil {
		return err
	}
	b.atEnd(b.dropQueue)
	if err := wake.Install(ctx, b.db, wake.Options{Logger: quiet}); err != nil { // installs the routines with which Enqueue wakes workers
		return err
	}
	bare, err := b.bareQueue(ctx)
	if err != nil {
		return err
	}
	if err := b.taskLatency(ctx, bare); err != nil {
		return err
	}
	return b.taskRates(ctx, bare)
}

// dropQueue deletes the queue's rows, because other queues share the tables.
func (b *bench) dropQueue() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, statement := range []string{
		"DELETE FROM " + schema.TaskTable + " WHERE queue = ?",
		"DELETE FROM " + schema.QueueTable + " WHERE name = ?",
	} {
		if _, err := b.db.Pool().ExecContext(ctx, statement, b.topic); err != nil {
			return err
		}
	}
	return nil
}

// queue returns the queue as another process would have it.
func (b *bench) queue() (*queue.Queue, error) {
	db, err := b.process()
	if err != nil {
		return nil, err
	}
	q, err := queue.New(db, b.topic, queue.Options{Logger: quiet})
	if err != nil {
		return nil, err
	}
	b.atEnd(q.Close)
	return q, nil
}

func (b *bench) taskLatency(ctx context.Context, bare *bareQueue) error {
	entering, err := b.queue()
	if err != nil {
		return err
	}
	working, err := b.queue()
	if err != nil {
		return err
	}
	handled := make(chan time.Time, 1)
	var floor, latencies, committed []float64
	round := func(ctx context.Context, kept bool) error {
		for range 10 { // until the worker has stored its outcome and is idle again
			rest(ctx)
		}
		begun := time.Now()
		if err := bare.enter(ctx, 1); err != nil {
			return err
		}
		if _, err := bare.claim(ctx, bare.conns[0], 1); err != nil {
			return err
		}
		took := time.Since(begun)
		rest(ctx)
		begun = time.Now()
		if _, err := entering.Enqueue(ctx, queue.Entry{Payload: taskPayload}); err != nil {
			return err
		}
		done := time.Now()
		at, err := receive(ctx, handled)
		if kept {
			floor, latencies = append(floor, ms(took)), append(latencies, ms(at.Sub(begun)))
			committed = append(committed, ms(at.Sub(done)))
		}
		return err
	}
	beside, end := context.WithCancel(ctx)
	defer end()
	group, ctx := errgroup.WithContext(beside)
	group.Go(func() error {
		return working.Work(ctx, queue.WorkerOptions{Discard: true}, func(ctx context.Context, _ queue.Task) error {
			select {
			case handled <- time.Now():
			case <-ctx.Done():
			}
			return nil
		})
	})
	group.Go(func() error {
		defer end()
		return b.rounds(ctx, func(kept bool) error { return round(ctx, kept) })
	})
	if err := group.Wait(); err != nil {
		return err
	}
	b.add(bareClaim, "ms", floor, "")
	b.add("enqueue to handler", "ms", latencies, bareClaim)
	b.add("commit to a worker's handler", "ms", committed, bareClaim)
	return nil
}

// taskRates measures the rates, in turns with those of the bare table.
func (b *bench) taskRates(ctx context.Context, bare *bareQueue) error {
	q, err := b.queue()
	if err != nil {
		return err
	}
	steps := []struct {
		name     string
		at, rows int
	}{
		{"tasks, 100 at once", 100, max(1, b.Rows/10)},
		{"tasks one by one", 1, max(1, b.Rows/100)},
	}
	for i, step := range steps {
		var floor, rates []float64
		err := turns(func(j int, kept bool) error {
			if err := bare.enter(ctx, step.rows); err != nil {
				return err
			}
			begun := time.Now()
			if err := bare.empty(ctx, step.at); err != nil {
				return err
			}
			bareTook := time.Since(begun)
			took, err := b.emptyQueue(ctx, q, step.rows, step.at)
			if err != nil {
				return err
			}
			if kept {
				floor = append(floor, float64(step.rows)/bareTook.Seconds())
				rates = append(rates, float64(step.rows)/took.Seconds())
			}
			b.Progress(b.suite, i*(1+times)+j+1, len(steps)*(1+times))
			return nil
		})
		if err != nil {
			return err
		}
		b.add("bare "+step.name, "tasks/s", floor, "")
		b.add(step.name, "tasks/s", rates, "bare "+step.name)
	}
	return nil
}

// emptyQueue returns how long workers take for n tasks, until the last one is stored as done.
func (b *bench) emptyQueue(ctx context.Context, q *queue.Queue, n, at int) (time.Duration, error) {
	entries := make([]queue.Entry, min(n, batch))
	for i := range entries {
		entries[i].Payload = taskPayload
	}
	for entered := 0; entered < n; entered += len(entries) {
		if _, err := q.Enqueue(ctx, entries[:min(n-entered, len(entries))]...); err != nil {
			return 0, err
		}
	}
	var left atomic.Int64
	left.Store(int64(n))
	working, end := context.WithCancel(ctx)
	defer end()
	group, running := errgroup.WithContext(working)
	begun := time.Now()
	for range workers {
		group.Go(func() error {
			err := q.Work(running, queue.WorkerOptions{Batch: at, Discard: true}, func(context.Context, queue.Task) error {
				if left.Add(-1) == 0 {
					end()
				}
				return nil
			})
			if errors.Is(err, context.Canceled) { // all tasks were done before this worker had connected
				return nil
			}
			return err
		})
	}
	err := group.Wait()
	if err == nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return time.Since(begun), err
}
