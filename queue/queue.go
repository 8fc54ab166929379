package queue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

const maxName = 64 // characters

// Create creates a queue in a database that `mqnotify init`, or Init of package mqnotify, has prepared. It keeps an existing
// queue; the error is notify.ErrOptions if that differs in Ordered.
func Create(ctx context.Context, db *notify.DB, name string, options Options) error {
	if err := checkName("the queue's name", name, maxName); err != nil {
		return err
	}
	_, err := db.Pool().ExecContext(ctx,
		"INSERT INTO "+schema.QueueTable+" (name, ordered) VALUES (?, ?)", name, options.Ordered)
	if err != nil && !server.Is(err, server.ErrDuplicate) {
		return fmt.Errorf("queue: make queue %q: %w", name, explain(err))
	}
	is, err := readSettings(ctx, db.Pool(), name, "")
	if err != nil {
		return err
	}
	if is.ordered != options.Ordered {
		kind := "ordered"
		if !is.ordered {
			kind = "not ordered"
		}
		return optionsf("the queue %q already exists, and is %s: use it as it is, or choose another name", name, kind)
	}
	return nil
}

// stored are a queue's settings with the server's max_allowed_packet, in bytes.
type stored struct {
	ordered bool
	packet  int
}

// readSettings reads the queue's row. lock is its locking clause, or empty.
func readSettings(ctx context.Context, db rowQueryer, name, lock string) (s stored, err error) {
	row := db.QueryRowContext(ctx, "SELECT ordered, @@max_allowed_packet FROM "+schema.QueueTable+" WHERE name = ?"+lock, name)
	switch err := row.Scan(&s.ordered, &s.packet); {
	case errors.Is(err, sql.ErrNoRows):
		return s, fmt.Errorf("queue: the queue %q %w: make it with `mqnotify init --queue NAME`", name, ErrNotFound)
	case err != nil:
		return s, fmt.Errorf("queue: look for queue %q: %w", name, explain(err))
	}
	return s, nil
}

type rowQueryer interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Options of a Queue. The zero value is ready for use.
type Options struct {
	// Ordered is for Create, which stores it: the queue gives out one task at a time, in the order of entry, and the next when the
	// one before is done or dead. Entering a task then locks the queue until the commit, so that the order of entry is that of the
	// commits. New ignores Ordered and uses the stored setting.
	Ordered bool
	// Logger gets the failures that no caller gets as an error. nil means slog.Default().
	Logger *slog.Logger
}

// Queue enters tasks, in its callers' goroutines and over the pool of the DB, and runs workers. Safe for
// concurrent use.
type Queue struct {
	db       *notify.DB
	name     string
	log      *slog.Logger
	waker    *core.Waker
	settings atomic.Pointer[stored] // nil until read
	closed   atomic.Bool
}

// New returns access to a queue of the DB's database. It does not connect. The caller
// closes the queue, and the DB after it.
func New(db *notify.DB, name string, options Options) (*Queue, error) {
	if err := checkName("the queue's name", name, maxName); err != nil {
		return nil, err
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	log := options.Logger.With("queue", name)
	return &Queue{db: db, name: name, log: log, waker: core.NewWaker(db, schema.TaskTable, waiting.Insert, log)}, nil
}

// Ordered reports whether the queue is Options.Ordered. It reads this once. The error is ErrNotFound if the queue does not exist.
func (q *Queue) Ordered(ctx context.Context) (bool, error) { return q.orderedOver(ctx, q.db.Pool()) }

func (q *Queue) orderedOver(ctx context.Context, db rowQueryer) (bool, error) {
	if s := q.settings.Load(); s != nil {
		return s.ordered, nil
	}
	s, err := readSettings(ctx, db, q.name, "")
	if err != nil {
		return false, err
	}
	q.settings.Store(&s)
	return s.ordered, nil
}

// Notify wakes the workers of all queues of the database. Call it after the commit of a
// transaction in which EnqueueTx entered tasks; Enqueue calls it itself. It does not wait
// until they are woken. If the table of tasks has a wake trigger, it does nothing.
func (q *Queue) Notify(context.Context) { q.waker.Wake() }

// changed wakes workers after a change at which no wake trigger fires.
func (q *Queue) changed() { q.waker.WakeAlways() }

// Close makes Enqueue and EnqueueTx fail with notify.ErrClosed, and returns when the workers have been
// woken. It may be called twice, and leaves the DB open.
func (q *Queue) Close() error {
	q.closed.Store(true)
	return q.waker.Close()
}

// error adds the action and the queue to an error.
func (q *Queue) error(what string, err error) error {
	if err == nil || errors.Is(err, notify.ErrOptions) || errors.Is(err, ErrNotFound) {
		return err
	}
	return fmt.Errorf("queue: %s %q: %w", what, q.name, explain(err))
}
