package mqnotify

import (
	"context"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

// Task is a task of a queue. Pass its field Task to [queue.FinishTx].
type Task[T any] struct {
	queue.Task
	// Value is the payload.
	Value T
}

// WorkOptions are the settings of [Work]. The zero value is recommended.
type WorkOptions = queue.WorkerOptions

// Enqueue stores the values as tasks of the queue, all or none of them, in a transaction of its own. For a delay, a
// priority or a unique key use package queue. It returns the errors of [queue.Queue.Enqueue].
func Enqueue[T any](ctx context.Context, db *DB, name string, values ...T) error {
	q, entries, err := entering(db, name, values)
	if err != nil {
		return err
	}
	_, err = q.Enqueue(ctx, entries...)
	return err
}

// EnqueueTx stores the values inside the caller's transaction. They become tasks when it commits, and vanish if it rolls back.
func EnqueueTx[T any](ctx context.Context, db *DB, tx notify.Tx, name string, values ...T) error {
	q, entries, err := entering(db, name, values)
	if err != nil {
		return err
	}
	_, err = q.EnqueueTx(ctx, tx, entries...)
	return err
}

func entering[T any](db *DB, name string, values []T) (*queue.Queue, []queue.Entry, error) {
	entries := make([]queue.Entry, len(values))
	for i, value := range values {
		var err error
		if entries[i].Payload, err = encode(value); err != nil {
			return nil, nil, err
		}
	}
	q, err := db.queue(name)
	return q, entries, err
}

func (db *DB) queue(name string) (*queue.Queue, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	q := db.queues[name]
	if q == nil {
		var err error
		if q, err = queue.New(db.core, name, queue.Options{}); err != nil {
			return nil, err
		}
		db.queues[name] = q
	}
	return q, nil
}

// Work calls handle with the queue's tasks until ctx ends; then it waits for the running handlers and returns nil. Of all workers
// of the queue, in all processes, one has a task at a time. If handle returns nil, the task is done. After an error Work tries
// the task again, up to five times, with growing waits, and then stores it as dead; an error that wraps [ErrDead] does so at once.
// Work handles a task at least once: again if its worker dies before the outcome is stored. It handles one task at a time unless
// options say otherwise. It takes at most one value of options.
func Work[T any](ctx context.Context, db *DB, name string, handle func(ctx context.Context, t Task[T]) error, options ...WorkOptions) error {
	o, err := one(options)
	if err != nil {
		return err
	}
	q, err := db.queue(name)
	if err != nil {
		return err
	}
	if handle == nil {
		return q.Work(ctx, o, nil) // which refuses it
	}
	return q.Work(ctx, o, func(ctx context.Context, task queue.Task) error {
		value, err := decode[T](task.Payload)
		if err != nil {
			return err
		}
		return handle(ctx, Task[T]{task, value})
	})
}
