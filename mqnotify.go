// Package mqnotify provides publish and subscribe, LISTEN and NOTIFY, tasks and locks on a MySQL or MariaDB database, and needs
// no other service. A consumer sleeps inside the server and wakes at the commit of a row, whichever program inserted it. No
// committed row is lost, even when transactions commit out of order, connections drop and processes are killed.
//
//	db, err := mqnotify.Open(os.Getenv("MQNOTIFY_DSN"))
//	err = db.Init(ctx, "orders")
//	err = mqnotify.Publish(ctx, db, "orders", Order{Customer: "Ada"})
//	err = mqnotify.Consume(ctx, db, "orders", "mailer", func(ctx context.Context, m mqnotify.Message[Order]) error {
//		return sendMail(ctx, m.Value.Customer)
//	})
//
// # Which function does what
//
//   - [Publish] and [PublishTx] store messages for all consumers. [Consume] and [ConsumeTx] handle them, in order, and store
//     each group's offset. They also read any table with an AUTO_INCREMENT key.
//   - [DB.Notify] and [DB.Listen] send and receive short texts under a name, as PostgreSQL's NOTIFY and LISTEN do.
//   - [Await] runs a SELECT and waits until it returns rows.
//   - [Enqueue], [EnqueueTx] and [Work] distribute tasks to workers; each task goes to one worker.
//   - [DB.Lock] runs a function in one process at a time.
//
// # Values
//
// The value of a message or a task has a Go type that you choose. A []byte, a json.RawMessage or a string is the payload as it is.
// Any other type is encoded as JSON. The rows of a table that mqnotify did not make are read into a struct by its db
// tags or, without such tags, from the row's JSON object (docs/reference/cli.md describes its form). A value that can't be decoded
// counts as a failure of the handler that another attempt would repeat: the message goes to the group's dead letters.
//
// # More
//
// This package composes the others, which have more settings and take the [DB.Core]: notify waits, producer and consumer
// handle messages, queue handles tasks, guard has locks and runs a thing once, capture makes messages of a table's changes,
// and serve and bridge bring messages to browsers and brokers.
package mqnotify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
	"github.com/mqnotify/mqnotify/queue"
)

// ErrDead is an error that handlers of [Consume] and [Work] return, alone or wrapped, when another attempt would fail as well. The
// message or the task goes to the dead letters at once.
var ErrDead = notify.ErrDead

// ErrStop is an error that handlers of [Consume] return, alone or wrapped: the message counts as handled, and Consume returns nil.
var ErrStop = consumer.ErrStop

// DB is a MySQL or MariaDB database. It connects when it is first used. Safe for concurrent use.
type DB struct {
	core *notify.DB

	mu        sync.Mutex
	producers map[string]*producer.Producer
	queues    map[string]*queue.Queue
}

// Open returns a DB for the database that dataSource names, as user:password@tcp(host:3306)/database or as
// mysql://user:password@host/database. It does not connect. The caller closes the DB. No error shows the password.
func Open(dataSource string) (*DB, error) {
	core, err := notify.Open(dataSource)
	if err != nil {
		return nil, err
	}
	return &DB{core: core, producers: make(map[string]*producer.Producer), queues: make(map[string]*queue.Queue)}, nil
}

// Core returns the DB that the other packages take. Close closes it, too. Its Pool begins transactions for [PublishTx] and
// [EnqueueTx].
func (db *DB) Core() *notify.DB { return db.core }

// Close closes the DB's producers, queues and connections. Call it after Consume, Work and the like have returned. It may be called
// twice.
func (db *DB) Close() error {
	db.mu.Lock()
	defer db.mu.Unlock()
	var errs []error
	for _, p := range db.producers {
		errs = append(errs, p.Close())
	}
	for _, q := range db.queues {
		errs = append(errs, q.Close())
	}
	return errors.Join(append(errs, db.core.Close())...)
}

// Init creates the topics' tables, the tables of mqnotify, and the triggers that wake consumers. It keeps those that exist.
// If the account may not create triggers, Init logs a warning with the remedy, and consumers find rows of other programs up to
// a second later. The account needs the privileges that `mqnotify grants --role admin` prints.
func (db *DB) Init(ctx context.Context, topics ...string) error {
	unchecked, err := core.Beside(db.core) // Init upgrades older tables
	if err != nil {
		return err
	}
	defer func() { _ = unchecked.Close() }()
	core.IgnoreVersion(unchecked)
	if err := schema.Init(ctx, unchecked.Pool(), topics...); err != nil {
		return err
	}
	var messages []string
	for _, topic := range topics {
		t, err := table.Describe(ctx, db.core.Pool(), db.core.Name(), topic)
		if err != nil {
			return err
		}
		if !t.IsMessageTable() {
			return fmt.Errorf("mqnotify: %w: the table %s exists and is not a message table: Consume can read it, but Publish can't write to it", notify.ErrNotTopic, t)
		}
		messages = append(messages, t.Name)
	}
	return wake.InstallAll(ctx, db.core, slog.Default(), messages...)
}

// InitQueues creates queues of tasks and keeps those that exist. Call Init first, because it creates their tables.
func (db *DB) InitQueues(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := queue.Create(ctx, db.core, name, queue.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// Notification is an element of the channel that Listen returns: a name, a payload and the time when it was sent.
type Notification = notify.Notification

// Notify sends a notification to all listeners of the name. The payload has at most 8,000 bytes. [notify.NotifyTx] sends one
// inside a transaction.
func (db *DB) Notify(ctx context.Context, name, payload string) error {
	return notify.Notify(ctx, db.core, name, payload)
}

// Listen returns a channel of the notifications of the names that are committed after Listen has returned, each once. The
// channel is closed after the end of ctx. See [notify.Listen].
func (db *DB) Listen(ctx context.Context, names ...string) (<-chan Notification, error) {
	return notify.Listen(ctx, db.core, names...)
}

// Await runs the query until it returns rows, and returns them, each in a T: a struct with db tags, or the type of a single
// column. The argument table names the table whose changes can make the query return rows. See [notify.Await].
func Await[T any](ctx context.Context, db *DB, table, query string, args ...any) ([]T, error) {
	return notify.Await[T](ctx, db.core, table, query, args...)
}

// Lock calls f while it holds the lock of the name, which one process of all that use the database can hold at a time. It waits
// until the lock is free. If ctx ends first, the error has ctx's cause, and is [notify.ErrNotAcquired] if another holder had the
// lock. The lock is lost with its connection: then f's context ends, and the error is [notify.ErrLockLost]. `mqnotify lock NAME`
// takes the same lock.
func (db *DB) Lock(ctx context.Context, name string, f func(ctx context.Context) error) error {
	mutex, err := guard.NewMutex(db.core, name, guard.MutexOptions{})
	if err != nil {
		return err
	}
	held, err := mutex.Lock(ctx)
	if err != nil {
		return err
	}
	work, cancel := held.Context(ctx)
	defer cancel()
	defer func() { _ = held.Release(context.WithoutCancel(ctx)) }() // if f panics
	err = f(work)
	return errors.Join(err, held.Release(context.WithoutCancel(ctx)))
}
