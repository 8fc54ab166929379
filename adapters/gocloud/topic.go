package gocloud

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/jmoiron/sqlx"
	"gocloud.dev/gcerrors"
	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/batcher"
	"gocloud.dev/pubsub/driver"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

// CreateTopic makes a topic without subscriptions, in a database with the tables of `mqnotify init`. It does not change an existing
// topic. A name must not contain a slash.
func CreateTopic(ctx context.Context, db *notify.DB, name string) error {
	if strings.Contains(name, "/") {
		return fmt.Errorf("gocloud: topic %q: %w: a topic's name has no slash", name, notify.ErrOptions)
	}
	return queue.Create(ctx, db, name+"/", queue.Options{})
}

// CreateSubscription makes a subscription of a topic, which gets the messages that are sent from now on. It does not change an existing
// subscription. A name must not contain a slash.
func CreateSubscription(ctx context.Context, db *notify.DB, topic, name string) error {
	if name == "" || strings.Contains(name, "/") {
		return fmt.Errorf("gocloud: subscription %q: %w: give a name, without a slash", name, notify.ErrOptions)
	}
	marker, err := queue.New(db, topic+"/", queue.Options{})
	if err != nil {
		return err
	}
	defer func() { _ = marker.Close() }()
	if _, err := marker.Ordered(ctx); err != nil {
		return fmt.Errorf("gocloud: topic %q: %w", topic, err)
	}
	return queue.Create(ctx, db, topic+"/"+name, queue.Options{})
}

// OpenTopic opens a topic. It does not connect. Send connects, and returns NotFound if the topic does not exist. The caller keeps db, and
// closes it after the topic's Shutdown.
func OpenTopic(db *notify.DB, name string) *pubsub.Topic {
	return pubsub.NewTopic(&topic{db: db, name: name, queues: make(map[string]*queue.Queue)},
		&batcher.Options{MaxBatchSize: 1000, MaxHandlers: 4})
}

// topic implements [driver.Topic].
type topic struct {
	db    *notify.DB
	name  string
	owned bool // Close closes db

	mu     sync.Mutex
	queues map[string]*queue.Queue
}

var _ driver.Topic = (*topic)(nil)

// SendBatch implements [driver.Topic].
func (t *topic) SendBatch(ctx context.Context, messages []*driver.Message) error {
	entries := make([]queue.Entry, len(messages))
	for i, m := range messages {
		if m.BeforeSend != nil {
			if err := m.BeforeSend(func(any) bool { return false }); err != nil {
				return err
			}
		}
		payload, err := wrap(m)
		if err != nil {
			return err
		}
		entries[i] = queue.Entry{Payload: payload, Retries: forever}
	}
	queues, err := t.send(ctx, entries)
	if err != nil {
		return err
	}
	for _, q := range queues {
		q.Notify(ctx)
	}
	for _, m := range messages {
		if m.AfterSend != nil {
			if err := m.AfterSend(func(any) bool { return false }); err != nil {
				return err
			}
		}
	}
	return nil
}

// send enters the tasks into the queues of all subscriptions, and returns these queues.
func (t *topic) send(ctx context.Context, entries []queue.Entry) (queues []*queue.Queue, err error) {
	tx, err := t.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = tx.Rollback() }()
	names, err := t.subscriptions(ctx, tx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		q, err := t.queue(name)
		if err != nil {
			return nil, err
		}
		if _, err := q.EnqueueTx(ctx, tx, entries...); err != nil {
			return nil, err
		}
		queues = append(queues, q)
	}
	return queues, tx.Commit()
}

// subscriptions returns the names of the queues of the topic's subscriptions. It locks nothing: a subscription that is made at the same
// time may or may not get the messages.
func (t *topic) subscriptions(ctx context.Context, tx *sqlx.Tx) (names []string, err error) {
	marker := t.name + "/"
	// The server pads the shorter name with spaces, and NUL is less than a space. "0" is the character after "/".
	err = tx.SelectContext(ctx, &names, "SELECT name FROM "+schema.QueueTable+
		" WHERE name > ? AND name < ? ORDER BY name", marker+"\x00", t.name+"0")
	if err != nil {
		return nil, err
	}
	at := slices.Index(names, marker)
	if at < 0 {
		return nil, fmt.Errorf("gocloud: topic %q: %w: CreateTopic makes it", t.name, queue.ErrNotFound)
	}
	return slices.Delete(names, at, at+1), nil
}

func (t *topic) queue(name string) (*queue.Queue, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	q := t.queues[name]
	if q == nil {
		var err error
		if q, err = queue.New(t.db, name, queue.Options{}); err != nil {
			return nil, err
		}
		t.queues[name] = q
	}
	return q, nil
}

// IsRetryable implements [driver.Topic]. It returns true for deadlocks and lock timeouts, after which nothing was sent. After a lost
// connection the transaction may have been committed.
func (*topic) IsRetryable(err error) bool { return server.Retryable(err) }

// As implements [driver.Topic]. It sets a **notify.DB to the database.
func (t *topic) As(i any) bool { return asDB(t.db, i) }

// ErrorAs implements [driver.Topic] with errors.As.
func (*topic) ErrorAs(err error, i any) bool { return errors.As(err, i) }

// ErrorCode implements [driver.Topic].
func (*topic) ErrorCode(err error) gcerrors.ErrorCode { return code(err) }

// Close implements [driver.Topic].
func (t *topic) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	for _, q := range t.queues {
		errs = append(errs, q.Close())
	}
	if t.owned {
		errs = append(errs, t.db.Close())
	}
	return errors.Join(errs...)
}

func asDB(db *notify.DB, i any) bool {
	p, ok := i.(**notify.DB)
	if ok {
		*p = db
	}
	return ok
}

func code(err error) gcerrors.ErrorCode {
	switch {
	case errors.Is(err, context.Canceled):
		return gcerrors.Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return gcerrors.DeadlineExceeded
	case errors.Is(err, queue.ErrNotFound):
		return gcerrors.NotFound
	case errors.Is(err, notify.ErrNoState):
		return gcerrors.FailedPrecondition
	case errors.Is(err, notify.ErrOptions):
		return gcerrors.InvalidArgument
	case errors.Is(err, notify.ErrDenied):
		return gcerrors.PermissionDenied
	}
	return gcerrors.Unknown
}

// magic is the beginning of a payload that has metadata before the body.
const magic = "mqnotify-gocloud "

// wrap returns a message as a task's payload: magic, the metadata as JSON, a newline, and the body. A message without metadata is its
// body alone, unless the body begins with magic.
func wrap(m *driver.Message) ([]byte, error) {
	if len(m.Metadata) == 0 && !strings.HasPrefix(string(m.Body), magic) {
		return m.Body, nil
	}
	metadata, err := json.Marshal(m.Metadata)
	if err != nil {
		return nil, err
	}
	return append(append(append([]byte(magic), metadata...), '\n'), m.Body...), nil
}

// unwrap reverses wrap.
func unwrap(payload []byte) (metadata map[string]string, body []byte, err error) {
	rest, ok := strings.CutPrefix(string(payload), magic)
	if !ok {
		return nil, payload, nil
	}
	head, text, _ := strings.Cut(rest, "\n")
	if err := json.Unmarshal([]byte(head), &metadata); err != nil {
		return nil, nil, fmt.Errorf("gocloud: metadata: %w", err)
	}
	return metadata, []byte(text), nil
}
