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

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
	schema "github.com/mqnotify/mqnotify/sql"
)

// ErrClosed is returned after Close.
var ErrClosed = errors.New("watermill: closed")

// PublisherConfig are a Publisher's settings. The zero value is ready for use.
type PublisherConfig struct {
	// InitializeSchema makes a topic's table when it is first published to.
	InitializeSchema bool
	// Producer are the settings of the producers, one for each topic.
	Producer producer.Options
}

// Publisher publishes to any topic. Safe for concurrent use.
type Publisher struct {
	db     *notify.DB
	config PublisherConfig
	tables tables

	mu        sync.Mutex
	closed    bool
	publishes sync.WaitGroup
	producers map[string]*producer.Producer
}

var _ message.Publisher = (*Publisher)(nil)

// NewPublisher does not connect. The caller keeps db and closes it after the Publisher.
// A nil logger logs nothing.
func NewPublisher(db *notify.DB, config PublisherConfig, logger watermill.LoggerAdapter) (*Publisher, error) {
	if db == nil {
		return nil, errors.New("watermill: no database")
	}
	if config.Producer.Logger == nil {
		config.Producer.Logger = slogger(logger)
	}
	return &Publisher{
		db: db, config: config, producers: make(map[string]*producer.Producer),
		tables: tables{db: db, init: config.InitializeSchema},
	}, nil
}

// Publish implements [message.Publisher]: the messages are all there or none, when it
// returns. The context is that of the first message. Its errors are those of
// producer.Publish: after producer.ErrUnknown nobody can tell whether they are there.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
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
	rows := make([]producer.Message, len(messages))
	for i, m := range messages {
		headers := make(map[string]string, len(m.Metadata)+1)
		maps.Copy(headers, m.Metadata)
		if m.UUID != "" {
			headers[UUIDHeader] = m.UUID
		}
		rows[i] = producer.Message{Headers: headers, Payload: m.Payload}
	}
	if _, err := to.Publish(ctx, rows...); err != nil {
		return fmt.Errorf("watermill: publish to %s: %w", topic, err)
	}
	return nil
}

// producer is the topic's; the caller counts as publishing until it says Done.
func (p *Publisher) producer(topic string) (*producer.Producer, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, ErrClosed
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

// Close waits for publishes under way. It may be called twice.
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
	return errors.Join(errs...)
}

// tables makes the tables of topics, each once.
type tables struct {
	db   *notify.DB
	init bool

	mu   sync.Mutex
	made map[string]bool
}

func (t *tables) ready(ctx context.Context, topic string) error {
	if !t.init {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.made[topic] {
		return nil
	}
	if err := schema.Init(ctx, t.db.Pool(), topic); err != nil {
		return fmt.Errorf("watermill: make topic %s: %w", topic, err)
	}
	if t.made == nil {
		t.made = make(map[string]bool)
	}
	t.made[topic] = true
	return nil
}

func slogger(logger watermill.LoggerAdapter) *slog.Logger {
	if logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(handler{logger})
}
