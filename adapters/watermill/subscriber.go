package watermill

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// SubscriberConfig are a Subscriber's settings. The zero value is ready for use.
type SubscriberConfig struct {
	// ConsumerGroup stores the offset under this name, and has one active subscription, or
	// with Consumer.MembersShare as many as there are, which share the messages by their
	// key (the metadata key); empty means that each subscription reads for itself.
	ConsumerGroup string
	// From is where to begin without a stored offset, as consumer.Options.From; empty means the topic's beginning.
	From string
	// NackResendSleep is how long a message that was not acknowledged waits before it
	// is handed out again. 0 means 10 ms, a negative value none.
	NackResendSleep time.Duration
	// AckDeadline is how long a message may take: one that is neither acknowledged nor
	// refused by then is handed out again, and its context ends. 0 means no end.
	AckDeadline time.Duration
	// Transaction hands out each message inside the transaction that stores the group's offset; TxFromContext has it from
	// the message's context. What is written there is written exactly once. The transaction is committed after the
	// message's Ack and rolled back after its Nack: neither must be done by the handler. It needs a ConsumerGroup.
	Transaction bool
	// DelayQueue is that of the publishers whose messages are to come later. The Subscriber brings them into their topics
	// when they are due, from its first Subscribe to Close; several subscribers share the work. Empty means that it does not.
	DelayQueue string
	// InitializeSchema makes a topic's table when it is first subscribed to. Without it
	// SubscribeInitialize does.
	InitializeSchema bool
	// Consumer are further settings of the consumers, one for each subscription. Group,
	// From, MaxAttempts, Retry, StopAtEnd and HandlerTimeout are set by the adapter.
	Consumer consumer.Options
}

// Subscriber subscribes to any topic, any number of times. Safe for concurrent use.
type Subscriber struct {
	db     *notify.DB
	config SubscriberConfig
	logger watermill.LoggerAdapter
	tables tables

	ctx    context.Context //nolint:containedctx // the life of the subscriptions: Close ends it
	cancel context.CancelFunc

	mu            sync.Mutex
	closed        bool
	delivers      bool // delayed messages
	subscriptions sync.WaitGroup
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// errNack makes the consumer hand a message out again.
var errNack = errors.New("watermill: not acknowledged")

// NewSubscriber does not connect. The caller keeps db and closes it after the Subscriber.
// A nil logger logs nothing.
func NewSubscriber(db *notify.DB, config SubscriberConfig, logger watermill.LoggerAdapter) (*Subscriber, error) {
	if db == nil {
		return nil, errors.New("watermill: no database")
	}
	if config.Transaction && config.ConsumerGroup == "" {
		return nil, errors.New("watermill: Transaction needs a ConsumerGroup, whose offset is stored in the transaction")
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	config.NackResendSleep = max(0, cmp.Or(config.NackResendSleep, 10*time.Millisecond))
	options := &config.Consumer
	options.Group = config.ConsumerGroup
	options.From = cmp.Or(config.From, "beginning")
	options.MaxAttempts = -1
	options.Retry = func() backoff.BackOff { return backoff.NewConstantBackOff(config.NackResendSleep) }
	options.StopAtEnd = false
	options.HandlerTimeout = config.AckDeadline
	if options.StopTimeout == 0 {
		options.StopTimeout = time.Nanosecond // who closes does not wait for an acknowledgement
	}
	if options.Logger == nil {
		options.Logger = slogger(logger)
	}
	s := &Subscriber{db: db, config: config, logger: logger, tables: tables{db: db, init: config.InitializeSchema, delayQueue: config.DelayQueue}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// SubscribeInitialize implements [message.SubscribeInitializer]: it makes the topic's table.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	t := tables{db: s.db, init: true, delayQueue: s.config.DelayQueue}
	return t.ready(s.ctx, topic)
}

// Subscribe implements [message.Subscriber]. The channel is closed when ctx ends, at
// Close, or when the consumer can't go on, which is logged. A lost connection is no
// end.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if err := s.tables.ready(ctx, topic); err != nil {
		return nil, err
	}
	c, err := consumer.New(s.db, topic, s.config.Consumer)
	if err != nil {
		return nil, fmt.Errorf("watermill: %w", err)
	}
	if s.config.DelayQueue != "" && !s.delivers {
		s.delivers = true
		s.subscriptions.Go(func() {
			if err := s.deliver(s.ctx); err != nil && s.ctx.Err() == nil {
				s.logger.Error("delayed messages stay where they are", err, watermill.LogFields{"queue": s.config.DelayQueue})
			}
		})
	}
	sub := &subscription{topic: topic, out: make(chan *message.Message), values: ctx}
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	sub.ctx = ctx
	s.subscriptions.Go(func() {
		defer close(sub.out)
		defer cancel()
		defer stop()
		handler := consumer.Each(func(ctx context.Context, row consumer.Message) error { return sub.handle(ctx, nil, row) })
		if s.config.Transaction {
			handler = consumer.EachTx(sub.handle)
		}
		if err := c.Run(ctx, handler); err != nil && ctx.Err() == nil {
			s.logger.Error("subscription ended", err, watermill.LogFields{"topic": topic})
		}
	})
	return sub.out, nil
}

// Close ends all subscriptions. It may be called twice.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.cancel()
	s.subscriptions.Wait()
	return nil
}

type txKey struct{}

// TxFromContext returns the transaction that a message was handed out in, from its context, if
// SubscriberConfig.Transaction is set.
func TxFromContext(ctx context.Context) (*sqlx.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*sqlx.Tx)
	return tx, ok
}

// subscription is one call of Subscribe.
type subscription struct {
	topic  string
	out    chan *message.Message
	ctx    context.Context //nolint:containedctx // ends the subscription
	values context.Context //nolint:containedctx // what a message's context has of the subscriber's
}

// handle hands a row out, and returns when it was acknowledged.
func (s *subscription) handle(ctx context.Context, tx *sqlx.Tx, row consumer.Message) error {
	m := s.message(row)
	values := s.values
	if tx != nil {
		values = context.WithValue(values, txKey{}, tx)
	}
	held, cancel := context.WithCancel(values)
	defer cancel()
	m.SetContext(held)
	select {
	case s.out <- m:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-m.Acked():
		return nil
	case <-m.Nacked():
		return errNack
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *subscription) message(row consumer.Message) *message.Message {
	uuid := row.Headers[uuidHeader]
	if uuid == "" {
		uuid = fmt.Sprintf("%s-%d", s.topic, row.ID)
	}
	m := message.NewMessage(uuid, row.Payload)
	for name, value := range row.Headers {
		if name != uuidHeader {
			m.Metadata.Set(name, value)
		}
	}
	return m
}
