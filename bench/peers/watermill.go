package main

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	watermillsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/go-sql-driver/mysql"
)

// watermills is watermill-sql, as its documentation has it.
type watermills struct {
	publisher, consumer *sql.DB
	each                time.Duration // 0: its default
}

func openWatermill(publisher, consumer *mysql.Config, each time.Duration) (topic, error) {
	w := &watermills{each: each}
	var err error
	// Without interpolateParams: its JSON column refuses the bytes that the driver then sends.
	if w.publisher, err = connect(publisher); err != nil {
		return nil, err
	}
	w.consumer, err = connect(consumer)
	return w, err
}

// initialize makes the tables.
func (w *watermills) initialize(root *sql.DB) error {
	s, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromStdSQL(root), w.config(""), watermill.NopLogger{})
	if err != nil {
		return err
	}
	return s.SubscribeInitialize("orders")
}

func (w *watermills) config(group string) watermillsql.SubscriberConfig {
	return watermillsql.SubscriberConfig{
		ConsumerGroup: group, PollInterval: w.each,
		SchemaAdapter: watermillsql.DefaultMySQLSchema{}, OffsetsAdapter: watermillsql.DefaultMySQLOffsetsAdapter{},
	}
}

func publishWatermill(ctx context.Context, db watermillsql.ContextExecutor, payloads ...[]byte) error {
	p, err := watermillsql.NewPublisher(db, watermillsql.PublisherConfig{SchemaAdapter: watermillsql.DefaultMySQLSchema{}}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	messages := make([]*message.Message, len(payloads))
	for i := range payloads {
		messages[i] = message.NewMessageWithContext(ctx, watermill.NewUUID(), payloads[i])
	}
	return p.Publish("orders", messages...)
}

func (w *watermills) Publish(ctx context.Context, payloads ...[]byte) error {
	return publishWatermill(ctx, watermillsql.BeginnerFromStdSQL(w.publisher), payloads...)
}

func (w *watermills) Begin(ctx context.Context, payload []byte) (func() error, error) {
	tx, err := w.publisher.BeginTx(ctx, nil)
	if err != nil {
		return nil, err
	}
	return tx.Commit, publishWatermill(ctx, watermillsql.TxFromStdSQL(tx), payload)
}

func (w *watermills) Consume(ctx context.Context, group string, handler func([]byte)) error {
	s, err := watermillsql.NewSubscriber(watermillsql.BeginnerFromStdSQL(w.consumer), w.config(group), watermill.NopLogger{})
	if err != nil {
		return err
	}
	messages, err := s.Subscribe(ctx, "orders")
	if err != nil {
		return err
	}
	for m := range messages {
		handler(m.Payload)
		m.Ack()
	}
	return s.Close()
}

func (w *watermills) Close() error {
	_ = w.consumer.Close()
	return w.publisher.Close()
}
