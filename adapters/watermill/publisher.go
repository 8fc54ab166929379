package watermill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/header"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
	"github.com/mqnotify/mqnotify/queue"
)

// errClosed is returned after Close.
var errClosed = fmt.Errorf("watermill: %w", notify.ErrClosed)

// PublisherConfig are a Publisher's settings. The zero value is ready for use.
type PublisherConfig struct {
	// InitializeSchema makes a topic's table at its first publish.
	InitializeSchema bool
	// DelayQueue is the queue (package queue) where messages wait that have a delay of Watermill's package components/delay. A
	// Subscriber with the same DelayQueue publishes them to their topics. If it is empty, Publish refuses such messages.
	DelayQueue string
	// Producer has the settings of the producers; there is one for each topic.
	Producer producer.Options
}

// Publisher publishes to any topic. Safe for concurrent use.
type Publisher struct {
	db     *notify.DB
	config PublisherConfig
	tables *tables

	mu        sync.Mutex
	closed    bool
	publishes sync.WaitGroup
	producers map[string]*producer.Producer
	delayed   *queue.Queue // nil without a DelayQueue
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher returns a Publisher. It does not connect. The caller keeps db and closes it after the Publisher. With a nil logger nothing
// is logged.
func NewPublisher(db *notify.DB, config PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if db == nil {
		return nil, errors.New("watermill: no database")
	}
	if config.Producer.Mode != "" {
		return nil, fmt.Errorf("watermill: %w: Producer.Mode is %q, and a Publisher can't wait for consumers: leave it empty", notify.ErrOptions, config.Producer.Mode)
	}
	if config.Producer.Logger == nil {
		config.Producer.Logger = slogger(logger)
	}
	p := &Publisher{
		db: db, config: config, producers: make(map[string]*producer.Producer),
		tables: newTables(db, config.InitializeSchema, config.DelayQueue),
	}
	if config.DelayQueue != "" {
		var err error
		if p.delayed, err = queue.New(db, config.DelayQueue, queue.Options{Logger: config.Producer.Logger}); err != nil {
			return nil, fmt.Errorf("watermill: %w", err)
		}
	}
	return p, nil
}

// Publish implements [message.Publisher]. When it returns nil, all messages are committed; after an error none is, except that after
// notify.ErrUnknown this is unknown. The context is the first message's. Its errors are those of producer.Publish; after Close it returns
// notify.ErrClosed.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	return p.publish(nil, topic, messages)
}

// WithTx returns a publisher that publishes in the caller's transaction: an outbox without a forwarder. The topic's wake trigger wakes
// listeners at the commit; without a wake trigger they find the messages by polling, within a second. Close of the returned publisher
// does nothing; p must stay open. After an error of Publish the caller must roll back.
func (p *Publisher) WithTx(tx notify.Tx) message.Publisher { return txPublisher{p, tx} }

type txPublisher struct {
	publisher *Publisher
	tx        notify.Tx
}

func (p txPublisher) Publish(topic string, messages ...*message.Message) error {
	return p.publisher.publish(p.tx, topic, messages)
}

func (p txPublisher) Close() error { return nil }

// publish publishes in tx, or in a transaction of its own if tx is nil.
func (p *Publisher) publish(tx notify.Tx, topic string, messages []*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	ctx := messages[0].Context()
	to, err := p.producer(topic)
	if err != nil {
		return err
	}
	defer p.publishes.Done()
	if err := p.tables.ready(ctx, topic); err != nil {
		return err
	}
	var rows []producer.Message
	var later []queue.Entry
	for _, m := range messages {
		headers := make(map[string]string, len(m.Metadata)+1)
		maps.Copy(headers, m.Metadata)
		maps.DeleteFunc(headers, func(name, _ string) bool { return header.Reserved(name) }) // a message that was consumed may have such headers
		if m.UUID != "" {
			headers[uuidHeader] = m.UUID
		}
		row := producer.Message{Headers: headers, Payload: m.Payload}
		wait, err := delayOf(m)
		if err != nil {
			return err
		}
		if wait <= 0 {
			rows = append(rows, row)
			continue
		}
		entry, err := delayedEntry(topic, row, wait)
		if err != nil {
			return err
		}
		later = append(later, entry)
	}
	if len(later) > 0 && p.delayed == nil {
		return errors.New("watermill: the message has a delay, and the publisher has no DelayQueue: set PublisherConfig.DelayQueue")
	}
	in := func(ctx context.Context, tx notify.Tx) error {
		if _, err := to.PublishTx(ctx, tx, rows...); err != nil {
			return err
		}
		if len(later) == 0 {
			return nil
		}
		_, err := p.delayed.EnqueueTx(ctx, tx, later...)
		return err
	}
	switch {
	case tx != nil:
		err = in(ctx, tx)
	case len(later) == 0:
		_, err = to.Publish(ctx, rows...)
	default:
		if err = to.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error { return in(ctx, tx) }); err == nil {
			p.delayed.Notify(ctx)
		}
	}
	if err != nil {
		return fmt.Errorf("watermill: publish to %s: %w", topic, err)
	}
	return nil
}

// producer returns the topic's producer. The caller calls p.publishes.Done after its use.
func (p *Publisher) producer(topic string) (*producer.Producer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	if p.producers[topic] == nil {
		made, err := producer.New(p.db, topic, p.config.Producer)
		if err != nil {
			return nil, fmt.Errorf("watermill: %w", err)
		}
		p.producers[topic] = made
	}
	p.publishes.Add(1)
	return p.producers[topic], nil
}

// Close waits for running publishes and closes the Publisher. It may be called twice.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.publishes.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	var errs []error
	for topic, made := range p.producers {
		errs = append(errs, made.Close())
		delete(p.producers, topic)
	}
	if p.delayed != nil {
		errs = append(errs, p.delayed.Close())
		p.delayed = nil
	}
	return errors.Join(errs...)
}

// tables makes the tables of topics, each once, and the queue of delayed messages.
type tables struct {
	db         *notify.DB
	init       bool
	delayQueue string
	made       sync.Map      // the topics whose tables exist
	making     chan struct{} // the permit to make tables, one caller at a time
}

func newTables(db *notify.DB, init bool, delayQueue string) *tables {
	return &tables{db: db, init: init, delayQueue: delayQueue, making: make(chan struct{}, 1)}
}

// ready makes the topic's table unless it exists. Topics that are ready do not wait for a table that takes long to make.
func (t *tables) ready(ctx context.Context, topic string) error {
	if _, made := t.made.Load(topic); made || !t.init {
		return nil
	}
	select {
	case t.making <- struct{}{}:
		defer func() { <-t.making }()
	case <-ctx.Done():
		return fmt.Errorf("watermill: make topic %s: %w", topic, context.Cause(ctx))
	}
	if _, made := t.made.Load(topic); made {
		return nil
	}
	db, err := core.Beside(t.db) // all connections of the pool may be in transactions that publish to the topic
	if err != nil {
		return fmt.Errorf("watermill: %w", err)
	}
	defer func() { _ = db.Close() }()
	if err := schema.Init(ctx, db.Pool(), topic); err != nil {
		return fmt.Errorf("watermill: make topic %s: %w", topic, err)
	}
	if t.delayQueue != "" {
		if err := queue.Create(ctx, db, t.delayQueue, queue.Options{}); err != nil {
			return fmt.Errorf("watermill: make the queue %s: %w", t.delayQueue, err)
		}
	}
	t.made.Store(topic, true)
	return nil
}

func slogger(logger watermill.LoggerAdapter) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(handler{logger})
}
