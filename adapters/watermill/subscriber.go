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
	// ConsumerGroup is the name of the group that stores the offset. One subscription of the group is active, or with
	// Consumer.MembersShare all are, and share the messages by the metadata key. If it is empty, each subscription gets all messages.
	ConsumerGroup string
	// From is where to begin without a stored offset, as consumer.Options.From; empty means the topic's beginning.
	From string
	// NackResendSleep is the wait before a message is delivered again after a Nack. 0 means 10 ms, a negative value no wait.
	NackResendSleep time.Duration
	// AckDeadline is how long a message may stay without Ack or Nack. Then its context ends, and it is delivered again. 0 means no limit.
	AckDeadline time.Duration
	// Transaction delivers each message in the transaction that stores the group's offset. TxFromContext returns the transaction from the
	// message's context. What the handler writes in it is written exactly once. The adapter commits after the message's Ack and rolls
	// back after its Nack; the handler must do neither. Transaction needs a ConsumerGroup.
	Transaction bool
	// DelayQueue is the DelayQueue of publishers. The Subscriber publishes delayed messages to their topics when they are due, from its
	// first Subscribe to Close. Several subscribers share the work. If it is empty, the Subscriber does not.
	DelayQueue string
	// InitializeSchema makes a topic's table at its first Subscribe. Without it, call SubscribeInitialize.
	InitializeSchema bool
	// Consumer has further settings of the consumers; there is one for each subscription. The adapter sets Group, From, MaxAttempts,
	// Retry, StopAtEnd and HandlerTimeout.
	Consumer consumer.Options
}

// Subscriber subscribes to any topic, any number of times. Safe for concurrent use.
type Subscriber struct {
	db     *notify.DB
	config SubscriberConfig
	logger watermill.LoggerAdapter
	tables *tables

	ctx    context.Context //nolint:containedctx // Close ends it, and with it the subscriptions
	cancel context.CancelFunc

	mu            sync.Mutex
	closed        bool
	delivers      bool // deliver has been started
	subscriptions sync.WaitGroup
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// errNack makes the consumer deliver a message again.
var errNack = errors.New("watermill: not acknowledged")

// NewSubscriber returns a Subscriber. It does not connect. The caller keeps db and closes it after the Subscriber. With a nil logger
// nothing is logged.
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
		options.StopTimeout = time.Nanosecond // Close does not wait for an acknowledgement
	}
	if options.Logger == nil {
		options.Logger = slogger(logger)
	}
	s := &Subscriber{db: db, config: config, logger: logger, tables: newTables(db, config.InitializeSchema, config.DelayQueue)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s, nil
}

// SubscribeInitialize implements [message.SubscribeInitializer]. It makes the topic's table.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	return newTables(s.db, true, s.config.DelayQueue).ready(s.ctx, topic)
}

// Subscribe implements [message.Subscriber]. The channel is closed when ctx ends, at Close, or when the consumer fails, which is logged.
// The consumer reconnects after a lost connection.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if s.ctx.Err() != nil {
		return nil, errClosed
	}
	if err := s.tables.ready(ctx, topic); err != nil {
		return nil, err
	}
	c, err := consumer.New(s.db, topic, s.config.Consumer)
	if err != nil {
		return nil, fmt.Errorf("watermill: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.config.DelayQueue != "" && !s.delivers {
		s.delivers = true
		s.subscriptions.Go(s.deliverAll)
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

// TxFromContext returns the transaction in which a message was delivered, from the message's context. It returns false unless
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
	values context.Context //nolint:containedctx // Subscribe's context, the parent of messages' contexts
}

// handle delivers a row and returns when it is acknowledged.
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
