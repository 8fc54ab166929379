package mqnotify

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// Message is a message of a topic, or a row of a table.
type Message[T any] struct {
	consumer.Message
	// Value is the payload, or the row. A []byte or json.RawMessage shares its memory with Payload; see there.
	Value T
}

// ConsumeOptions are the settings of [Consume]. The zero value is recommended. A new group begins with every stored message if
// From is "beginning". Leave the field Group empty, because Consume has an argument for it.
type ConsumeOptions = consumer.Options

// Publish stores the values as messages of the topic, all or none of them, in a transaction of its own. It returns the errors of
// [producer.Producer.Publish]. After notify.ErrUnknown the messages may be stored or not.
func Publish[T any](ctx context.Context, db *DB, topic string, values ...T) error {
	p, messages, err := publishing(db, topic, values)
	if err != nil {
		return err
	}
	_, err = p.Publish(ctx, messages...)
	return err
}

// PublishTx stores the values inside the caller's transaction. They become messages when it commits, and vanish if it rolls back.
// The topic's wake trigger wakes consumers at the commit. Without the trigger they find the messages within a second, or at
// once if the caller calls db.Core().Wake after the commit.
func PublishTx[T any](ctx context.Context, db *DB, tx notify.Tx, topic string, values ...T) error {
	p, messages, err := publishing(db, topic, values)
	if err != nil {
		return err
	}
	_, err = p.PublishTx(ctx, tx, messages...)
	return err
}

func publishing[T any](db *DB, topic string, values []T) (*producer.Producer, []producer.Message, error) {
	messages := make([]producer.Message, len(values))
	for i, value := range values {
		var err error
		if messages[i].Payload, err = encode(value); err != nil {
			return nil, nil, err
		}
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	p := db.producers[topic]
	if p == nil {
		var err error
		if p, err = producer.New(db.core, topic, producer.Options{}); err != nil {
			return nil, nil, err
		}
		db.producers[topic] = p
	}
	return p, messages, nil
}

// Consume calls handle with every message of the topic, one at a time, until ctx ends; then it returns nil. The topic may be any
// table with an AUTO_INCREMENT key.
//
// The server stores the group's offset. One process of a group handles messages. The others stand by, and one of them takes over
// when the first dies. A new group begins with what is committed from now on, unless options.From says otherwise. Consume handles a
// message at least once: again if the process dies before the offset is stored. If handle fails, Consume calls it again, five
// times in all, and then moves the message to the group's dead letters. An error that wraps [ErrDead] moves it there at once.
// [ErrStop] ends Consume.
//
// With an empty group Consume stores nothing and begins with what is committed from now on. It then has no dead letters, and
// returns a [consumer.HandlerError] in their place.
//
// Consume takes at most one value of options; more are a [notify.ErrOptions].
func Consume[T any](ctx context.Context, db *DB, topic, group string, handle func(ctx context.Context, m Message[T]) error, options ...ConsumeOptions) error {
	return consume(ctx, db, topic, group, options, func(d *decoder[T]) consumer.Handler {
		if handle == nil {
			return consumer.Handler{} // which Run refuses
		}
		return consumer.Each(func(ctx context.Context, m consumer.Message) error {
			value, err := d.message(m)
			if err == nil {
				err = handle(ctx, Message[T]{m, value})
			}
			return err
		})
	})
}

// ConsumeTx is Consume with a handler that works in a transaction. The commit of this transaction also stores the group's offset,
// so the handler's statements in it take effect exactly once. The handler must neither commit nor roll back, and must return the
// error of every statement that fails. The group must not be empty.
func ConsumeTx[T any](ctx context.Context, db *DB, topic, group string, handle func(ctx context.Context, tx *sqlx.Tx, m Message[T]) error, options ...ConsumeOptions) error {
	return consume(ctx, db, topic, group, options, func(d *decoder[T]) consumer.Handler {
		if handle == nil {
			return consumer.Handler{}
		}
		return consumer.EachTx(func(ctx context.Context, tx *sqlx.Tx, m consumer.Message) error {
			value, err := d.message(m)
			if err == nil {
				err = handle(ctx, tx, Message[T]{m, value})
			}
			return err
		})
	})
}

func consume[T any](ctx context.Context, db *DB, topic, group string, options []ConsumeOptions, handler func(*decoder[T]) consumer.Handler) error {
	o, err := one(options)
	if err != nil {
		return err
	}
	if o.Group != "" {
		return fmt.Errorf("mqnotify: %w: the group is an argument: leave Options.Group empty", notify.ErrOptions)
	}
	o.Group = group
	c, err := consumer.New(db.core, topic, o)
	if err != nil {
		return err
	}
	d := newDecoder[T]()
	if err := d.check(ctx, db.core, topic, o.Columns); err != nil {
		return err
	}
	return c.Run(ctx, handler(d))
}

// one returns the only value of options, or the zero value if there is none.
func one[O any](options []O) (o O, err error) {
	switch len(options) {
	case 0:
	case 1:
		o = options[0]
	default:
		err = fmt.Errorf("mqnotify: %w: more than one value of options", notify.ErrOptions)
	}
	return o, err
}
