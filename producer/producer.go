// Package producer writes messages into a topic, which is a table.
//
// A committed row is a message; everything else that a producer does is a hint. Publish inserts and commits, PublishTx inserts
// inside a transaction of the caller (the outbox pattern), and Transact runs such a transaction. With the Mode
// "handshake" a producer takes turns with one consumer.
//
//	p, err := producer.New(db, "orders", producer.Options{})
//	ids, err := p.Publish(ctx, producer.Message{Payload: payload})
//
// The table's wake trigger wakes the topic's listeners. Without one, Publish calls mqnotify_wake after the commit.
//
// Publish itself never stores a message twice. When a connection ends between a commit and its answer, the error is
// notify.ErrUnknown, and only the caller can decide whether to risk a duplicate by publishing again. SafeToRetry reports when
// publishing again makes no duplicate.
package producer

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// Message is what a producer writes: a payload of any bytes, and headers.
type Message struct {
	// Headers are stored as a JSON object, or as NULL when there are none. Names and values must be UTF-8: put other bytes into
	// the payload. Names that begin with "mqnotify-", in capitals or not, are reserved: notify.ErrOptions.
	Headers map[string]string
	// Payload may be any bytes. nil and empty both mean an empty payload.
	Payload []byte
}

// Options of a Producer. The zero value is ready for use.
type Options struct {
	// Mode is how Publish works. Empty, the default, publishes in the caller's goroutine, over the pool of the DB. "handshake" hands
	// the messages to Run, which takes turns with a consumer of the same Mode; PublishTx and Transact then return an error.
	Mode string
	// SetFlag increments the topic's one-row flag (notify.Flag) after every commit and outside the transaction, for consumers that
	// poll it. A failure is logged: it costs latency, never a message.
	SetFlag bool
	// Logger gets the failures that no caller gets as an error: flags that were not set, connections that
	// Run lost. nil means slog.Default(); slog.DiscardHandler silences it.
	Logger *slog.Logger
	// BatchRows and BatchBytes are the maximum rows and bytes of one INSERT statement; Publish begins another one after that. 0
	// means 1000 rows and 4 MiB. The max_allowed_packet of server and driver are a bound as well. New refuses more than 32,000
	// rows.
	BatchRows, BatchBytes int
}

// flagPatience is the longest time that a publish waits for the flag.
const flagPatience = 5 * time.Second

// Producer publishes to one topic, in its callers' goroutines and over the pool of
// the DB. Safe for concurrent use.
type Producer struct {
	db     *notify.DB
	topic  string
	into   string                          // the beginning of every INSERT
	hint   func(ctx context.Context) error // sets the flag; nil without Options.SetFlag
	log    *slog.Logger
	batch  batchLimits
	caps   atomic.Pointer[server.Capabilities] // nil until read, and after an error that may mean another server
	last   atomic.Pointer[step]
	closed atomic.Bool
	waker  *core.Waker

	handshake *handshake // nil without the Mode "handshake"
}

// modeHandshake is the value of Options.Mode.
const modeHandshake = "handshake"

// New returns a producer for the topic, which must be the name of a table in the DB's database. It does not connect. The caller
// closes the producer, and the DB after it.
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
		waker: core.NewWaker(db, topic, waiting.Insert, options.Logger),
	}
	if options.SetFlag {
		p.hint = func(ctx context.Context) error { return notify.Flag{Topic: topic}.Set(ctx, db.Pool()) }
	}
	if options.Mode == modeHandshake {
		p.handshake = newHandshake(p)
	}
	return p, nil
}

// Publish stores the messages, all or none of them, and returns their ids in the order of the messages once they are committed. It
// inserts all messages with one statement, or with a transaction of several statements if they are too many or too large for one.
// Without messages it sends nothing.
//
// Publish tries again a few times after a deadlock or a lock wait timeout, but not after a lost connection: see notify.ErrUnknown and
// SafeToRetry. Other errors are notify.ErrNoTable, notify.ErrNotTopic, notify.ErrDenied, notify.ErrReadOnly,
// notify.ErrOptions for a header, a *notify.TooLargeError, notify.ErrClosed, or the server's.
//
// With the Mode "handshake" Publish waits until Run has begun and the producer has its turn. If ctx ends before the turn, the
// messages are never stored. After Run has ended the error is notify.ErrClosed. After a notify.ErrUnknown Run may still read the
// payloads.
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

// publish stores the messages, and reports whether it has woken the listeners with the same packet.
func (p *Producer) publish(ctx context.Context, messages []Message) (ids []uint64, woken bool, err error) {
	if p.closed.Load() {
		return nil, false, notify.ErrClosed
	}
	rows, err := encode(messages)
	if err != nil {
		return nil, false, err
	}
	err = server.Again(ctx, server.Retryable, func() error {
		// Get the connection in a step of its own, because an error here means that nothing was sent.
		conn, err := p.waker.Conn(ctx)
		packets := conn != nil
		if conn == nil { // a trigger wakes the listeners, or the server accepts no more connections
			conn, err = p.db.Pool().Conn(ctx)
		}
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer conn.Close()
		ids, woken, err = p.commit(ctx, conn, rows, packets)
		return err
	})
	return ids, woken, err
}

// Notify wakes the topic's listeners if the table has no wake trigger, and sets the flag. Call it after the commit of a
// transaction in which PublishTx stored messages; Publish and Transact call it themselves. It does not wait until the listeners
// are woken. It logs a failure to set the flag.
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

// Close makes later publishes fail with notify.ErrClosed, and returns when the listeners of earlier ones have been woken. It does not
// interrupt a publish that is running. It may be called twice, and leaves the DB open.
func (p *Producer) Close() error {
	p.closed.Store(true)
	return p.waker.Close()
}
