// Package producer writes messages into a topic, which is a table.
//
// A message is a row that is committed; whatever else is done about it is a hint.
// Publish writes and commits, PublishTx writes inside a transaction of the
// caller's (the outbox pattern), Transact runs such a transaction. With the Mode
// "handshake" a producer takes turns with one consumer.
//
//	p, err := producer.New(db, "orders", producer.Options{})
//	ids, err := p.Publish(ctx, producer.Message{Payload: payload})
//
// Publish wakes the topic's listeners: the table's wake trigger does, or a call of
// mqnotify_wake after the commit where there is none.
//
// Publish never stores a message twice on its own account: when a connection ends
// between a commit and its answer, the error is notify.ErrUnknown, and only the caller
// can decide whether to risk a duplicate by trying again. SafeToRetry reports when
// another try makes none.
package producer

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// Message is what a producer writes: any bytes, and headers with them.
type Message struct {
	// Headers are stored as a JSON object, NULL when there are none. Names and
	// values are UTF-8: other bytes belong into the payload. Names that begin with "mqnotify-", in capitals or
	// not, are reserved: notify.ErrOptions.
	Headers map[string]string
	// Payload may be any bytes. nil and empty are the same: an empty payload.
	Payload []byte
}

// Options of a Producer. The zero value is ready for use.
type Options struct {
	// Mode is how Publish works. Empty, the default, is in the caller's goroutine, over the pool of the DB. "handshake" hands the
	// messages to Run, which takes turns with a consumer of the same Mode; PublishTx and Transact are not for it.
	Mode string
	// Flag counts up the topic's one-row flag (notify.Flag) after every commit, for consumers that poll it, and outside the
	// transaction. A failure is logged: it costs latency, never a message.
	Flag bool
	// Logger gets what no caller is told: flags that were not set, connections that
	// Run lost. nil means slog.Default(); slog.DiscardHandler silences it.
	Logger *slog.Logger
	// BatchRows and BatchBytes are where Publish begins another statement: the
	// most rows in one, and its most bytes as it is sent. 0 means 1000 rows and
	// 4 MiB. The max_allowed_packet of server and driver bounds both anyway; more
	// than 32,000 rows are refused.
	BatchRows, BatchBytes int
}

// flagPatience is how long a publish waits for the flag at most.
const flagPatience = 5 * time.Second

// Producer publishes to one topic, in its callers' goroutines and over the pool of
// the DB. Safe for concurrent use.
type Producer struct {
	db     *notify.DB
	topic  string
	into   string                          // the beginning of each INSERT
	hint   func(ctx context.Context) error // sets the flag; nil for none
	log    *slog.Logger
	batch  batchLimits
	caps   atomic.Pointer[server.Capabilities] // nil until asked for, and after a doubt
	last   atomic.Pointer[step]
	closed atomic.Bool
	waker  *core.Waker

	handshake *handshake // nil without the Mode
}

// modeHandshake is the value of Options.Mode.
const modeHandshake = "handshake"

// New is a producer for the topic, which must be the name of a table in the DB's
// database. It does not connect; the caller keeps and closes the DB.
func New(db *notify.DB, topic string, options Options) (*Producer, error) {
	if err := ident.Check(topic); err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	if options.Mode != "" && options.Mode != modeHandshake {
		return nil, fmt.Errorf("producer: %w: no Mode %q: handshake or empty", notify.ErrOptions, options.Mode)
	}
	batch, err := newBatchLimits(options, core.MaxAllowedPacket(db))
	if err != nil {
		return nil, fmt.Errorf("producer: %w", err)
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	p := &Producer{
		db:    db,
		topic: topic,
		into:  "INSERT INTO " + ident.Quote(topic) + " (headers, payload) VALUES ",
		log:   options.Logger.With("topic", topic),
		batch: batch,
		waker: core.NewWaker(db, topic, options.Logger),
	}
	if options.Flag {
		p.hint = func(ctx context.Context) error { return notify.Flag{Topic: topic}.Set(ctx, db.Pool()) }
	}
	if options.Mode == modeHandshake {
		p.handshake = newHandshake(p)
	}
	return p, nil
}

// Publish stores the messages, all or none of them, and returns their ids in
// their order once they are committed. One message is one statement; many are one
// statement with many rows, or a transaction of several when they are too many or
// too large for one. No message is no statement.
//
// A deadlock or a lock that took too long is tried again a few times. A lost
// connection is not: see notify.ErrUnknown and SafeToRetry. Other errors are notify.ErrNoTable,
// notify.ErrNotTopic, notify.ErrDenied, notify.ErrReadOnly, a *notify.TooLargeError, notify.ErrClosed, or the server's.
//
// With the Mode "handshake" Publish waits for Run to begin, and for the producer's turn, as long as ctx lives; messages whose turn
// has not come by then are never stored. After Run has ended the error is notify.ErrClosed. After a notify.ErrUnknown Run may
// still read the payloads.
func (p *Producer) Publish(ctx context.Context, messages ...Message) ([]uint64, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	if p.handshake != nil {
		ids, err := p.handshake.publish(ctx, messages)
		if err != nil {
			return nil, p.explain(err)
		}
		return ids, nil
	}
	ids, woken, err := p.publish(ctx, messages)
	if err != nil {
		return nil, p.explain(err)
	}
	if !woken {
		p.waker.Wake()
	}
	p.setFlag(ctx)
	return ids, nil
}

// publish stores the messages, and reports whether that has woken the listeners.
func (p *Producer) publish(ctx context.Context, messages []Message) (ids []uint64, woken bool, err error) {
	if p.closed.Load() {
		return nil, false, notify.ErrClosed
	}
	rows, err := encode(messages)
	if err != nil {
		return nil, false, err
	}
	err = server.Again(ctx, server.Retryable, func() error {
		// A connection first, in a step of its own: what fails here has sent nothing.
		conn, err := p.waker.Conn(ctx)
		packets := conn != nil
		if conn == nil { // none is needed, or the server gives no more
			conn, err = p.db.Pool().Conn(ctx)
		}
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer closeConn(conn)
		ids, woken, err = p.commit(ctx, conn, rows, packets)
		return err
	})
	return ids, woken, err
}

// closeConn hands a connection back to its pool, which drops it if it is bad.
func closeConn(conn *sql.Conn) { _ = conn.Close() }

// Notify wakes the topic's listeners where no wake trigger does, and sets the flag.
// Call it after the commit of a transaction in which PublishTx stored messages;
// Publish and Transact call it themselves. It does not wait until the listeners are
// woken. A flag that can't be set is logged.
func (p *Producer) Notify(ctx context.Context) {
	p.waker.Wake()
	p.setFlag(ctx)
}

func (p *Producer) setFlag(ctx context.Context) {
	if p.hint == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, flagPatience)
	defer cancel()
	if err := p.hint(ctx); err != nil {
		p.log.WarnContext(ctx, "the flag was not set: listeners find the messages by themselves, later", "error", err)
	}
}

// Close makes further publishes fail with notify.ErrClosed, and returns when the listeners
// of what was published have been woken. A publish under way ends with its caller.
// Close may be called twice, and leaves the DB open.
func (p *Producer) Close() error {
	p.closed.Store(true)
	return p.waker.Close()
}
