// Package mqnotify is publish and subscribe, LISTEN and NOTIFY, tasks and locks on a MySQL or MariaDB database, and needs
// nothing else. A consumer sleeps inside the server and wakes at the commit of a row, whichever program inserted it. No
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
//   - [Publish] and [PublishTx] store messages for all who listen. [Consume] and [ConsumeTx] handle them, in order, and
//     remember for each group how far it is. They read any table with an AUTO_INCREMENT key, too.
//   - [DB.Notify] and [DB.Listen] pass on short texts under a name, as PostgreSQL's NOTIFY and LISTEN do.
//   - [Await] is a SELECT that waits until it returns rows.
//   - [Enqueue], [EnqueueTx] and [Work] share tasks among workers, each task for one of them.
//   - [DB.Lock] does a thing on one machine at a time.
//
// # Values
//
// A message's or a task's value has a type of the user's. A []byte, a json.RawMessage or a string is the payload as it is.
// Any other type is the payload's JSON. The rows of a table that mqnotify did not make are read into a struct by its db
// tags, or, without such tags, from the row's JSON object (see docs/reference/cli.md for its form). A value that can't be decoded is a
// failure of the handler that is not tried again: the message goes to the group's dead letters.
//
// # More
//
// The package only puts others together. They have more settings, and take the [DB.Core]: notify waits, producer and consumer
// are for messages, queue is for tasks, guard for locks and for doing a thing once, capture makes messages of the changes of
// a table, serve and bridge bring messages to browsers and brokers.
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

// ErrDead is for handlers of [Consume] and [Work] to return, alone or wrapped: the message or the task is not tried again. It
// goes to the dead letters at once.
var ErrDead = notify.ErrDead

// ErrStop is for handlers of [Consume] to return, alone or wrapped: the message is handled, and Consume returns nil.
var ErrStop = consumer.ErrStop

// DB is a database of MySQL or MariaDB. It connects when it is used. Safe for concurrent use.
type DB struct {
	core *notify.DB

	mu        sync.Mutex
	producers map[string]*producer.Producer
	queues    map[string]*queue.Queue
}

// Open returns access to the database that the data source names, as user:password@tcp(host:3306)/database or as
// mysql://user:password@host/database. It does not connect. The caller closes the DB. No error shows the password.
func Open(dataSource string) (*DB, error) {
	core, err := notify.Open(dataSource)
	if err != nil {
		return nil, err
	}
	return &DB{core: core, producers: make(map[string]*producer.Producer), queues: make(map[string]*queue.Queue)}, nil
}

// Core returns the DB that the other packages take. The DB closes it. Its Pool begins transactions for [PublishTx] and
// [EnqueueTx].
func (db *DB) Core() *notify.DB { return db.core }

// Close ends what the DB has begun. Call it when Consume, Work and the like have returned. It may be called twice.
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

// Init makes the tables of the topics, those of mqnotify, and the triggers that wake consumers. What is there already stays.
// Where the account may not make triggers it logs a warning with the remedy, and consumers find rows of other programs up to
// a second later. The account needs what `mqnotify grants --role admin` prints.
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
			return fmt.Errorf("mqnotify: %w: a table of another kind has the name %s: Consume reads it as it is, and Publish can't write to it", notify.ErrNotTopic, t)
		}
		messages = append(messages, t.Name)
	}
	return wake.InstallAll(ctx, db.core, slog.Default(), messages...)
}

// InitQueues makes queues of tasks. Those that are there already stay. Init has made their tables.
func (db *DB) InitQueues(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := queue.Create(ctx, db.core, name, queue.Options{}); err != nil {
			return err
		}
	}
	return nil
}

// Notification is what Listen gives: a name, a payload and when it was sent.
type Notification = notify.Notification

// Notify sends a notification to all who listen to the name. The payload has at most 8,000 bytes. [notify.NotifyTx] sends one
// inside a transaction.
func (db *DB) Notify(ctx context.Context, name, payload string) error {
	return notify.Notify(ctx, db.core, name, payload)
}

// Listen returns a channel of the notifications of the names that are committed after Listen has returned, each once. The
// channel is closed after the end of ctx. See [notify.Listen].
func (db *DB) Listen(ctx context.Context, names ...string) (<-chan Notification, error) {
	return notify.Listen(ctx, db.core, names...)
}

// Await waits until a query returns rows, and returns them, each in a T: a struct with db tags, or the type of a single
// column. table is the one whose changes can make it return rows. See [notify.Await].
func Await[T any](ctx context.Context, db *DB, table, query string, args ...any) ([]T, error) {
	return notify.Await[T](ctx, db.core, table, query, args...)
}

// Lock calls f while it holds the lock of the name, which one process of all that use the database has at a time. It waits
// until the lock is free or ctx has ended; then the error is [notify.ErrNotAcquired]. The lock is lost with its connection:
// then f's context ends, and the error is [notify.ErrLockLost]. `mqnotify lock NAME` takes the same lock.
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
