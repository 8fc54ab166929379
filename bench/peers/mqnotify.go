package main

import (
	"context"
	"log/slog"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// ours is mqnotify.
type ours struct {
	options  consumer.Options
	config   *mysql.Config // the consumer's
	db       *notify.DB    // the publisher's
	producer *producer.Producer
}

func openOurs(publisher, consumes *mysql.Config) (topic, error) {
	db, err := notify.OpenConfig(publisher)
	if err != nil {
		return nil, err
	}
	p, err := producer.New(db, "orders", producer.Options{})
	if err != nil {
		return nil, err
	}
	options := consumer.Options{From: "beginning", Logger: slog.New(slog.DiscardHandler)}
	return &ours{options: options, config: consumes, db: db, producer: p}, nil
}

func (o *ours) Publish(ctx context.Context, payloads ...[]byte) error {
	messages := make([]producer.Message, len(payloads))
	for i := range payloads {
		messages[i].Payload = payloads[i]
	}
	_, err := o.producer.Publish(ctx, messages...)
	return err
}

func (o *ours) Begin(ctx context.Context, payload []byte) (func() error, error) {
	tx, err := o.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return nil, err
	}
	if _, err := o.producer.PublishTx(ctx, tx, producer.Message{Payload: payload}); err != nil {
		return nil, err
	}
	return tx.Commit, nil
}

func (o *ours) Consume(ctx context.Context, group string, handler func([]byte)) error {
	db, err := notify.OpenConfig(o.config)
	if err != nil {
		return err
	}
	defer func() { _ = db.Close() }()
	options := o.options
	options.Group = group
	c, err := consumer.New(db, "orders", options)
	if err != nil {
		return err
	}
	return c.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		handler(m.Payload)
		return nil
	}))
}

func (o *ours) Close() error {
	err := o.producer.Close()
	if closed := o.db.Close(); err == nil {
		err = closed
	}
	return err
}
