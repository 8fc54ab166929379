package watermill_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	adapter "github.com/mqnotify/mqnotify/adapters/watermill"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// The examples use ctx, db and logger. notify.Open made db, and ctx ends when the program should end.
var (
	ctx    = context.Background()
	db     *notify.DB
	logger = watermill.NopLogger{}
)

// TestExamples runs the examples on each server. It ends the router when its group has handled the message.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		var err error
		db, err = notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE sale (total INT)")
		stop := mysqltest.Until(t, &ctx, db.Pool().DB, "SELECT COUNT(*) = 1 FROM mqnotify_offset WHERE group_name = 'mailer' AND settled >= 1")
		require.Equal(t, "mail for parcel 7\n", mysqltest.Output(t, Example))
		stop()
		stop = mysqltest.Until(t, &ctx, nil, "")
		defer stop()
		require.Equal(t, "stored and published\n", mysqltest.Output(t, ExamplePublisher_WithTx))
		require.Equal(t, "stored with the offset\n", mysqltest.Output(t, ExampleTxFromContext))
		require.Equal(t, "order 1\n", mysqltest.Output(t, ExampleSubscriber_SubscribeInitialize))
	})
}

// This router runs on MySQL.
func Example() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "mailer", InitializeSchema: true}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	router.AddConsumerHandler("mail", "parcels", subscriber, func(m *message.Message) error {
		fmt.Printf("mail for %s\n", m.Payload)
		return nil // after an error the message is delivered again
	})
	if err := publisher.Publish("parcels", message.NewMessage(watermill.NewUUID(), []byte("parcel 7"))); err != nil {
		fmt.Println(err)
		return
	}
	if err := router.Run(ctx); err != nil { // until ctx ends
		fmt.Println(err)
		return
	}
}

// The program makes the tables once, when it is set up.
func ExampleSubscriber_SubscribeInitialize() {
	subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer subscriber.Close()
	if err := subscriber.SubscribeInitialize("orders"); err != nil {
		fmt.Println(err)
		return
	}
	messages, err := subscriber.Subscribe(ctx, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	if err := publisher.Publish("orders", message.NewMessage(watermill.NewUUID(), []byte("order 1"))); err != nil {
		fmt.Println(err)
		return
	}
	m := <-messages
	fmt.Printf("%s\n", m.Payload)
	m.Ack()
}

// An order and its message are stored together or not at all.
func ExamplePublisher_WithTx() {
	publisher, err := adapter.NewPublisher(db, adapter.PublisherConfig{InitializeSchema: true}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer publisher.Close()
	tx, err := db.Pool().BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(ctx, "INSERT INTO sale (total) VALUES (9)"); err != nil {
		fmt.Println(err)
		return
	}
	if err := publisher.WithTx(tx).Publish("sales", message.NewMessage(watermill.NewUUID(), []byte("a sale of 9"))); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("stored and published")
}

// The handler's writes are committed once, with the group's offset.
func ExampleTxFromContext() {
	subscriber, err := adapter.NewSubscriber(db, adapter.SubscriberConfig{ConsumerGroup: "totals", Transaction: true}, logger)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer subscriber.Close()
	messages, err := subscriber.Subscribe(ctx, "sales")
	if err != nil {
		fmt.Println(err)
		return
	}
	m := <-messages
	tx, _ := adapter.TxFromContext(m.Context())
	if _, err := tx.ExecContext(ctx, "INSERT INTO sale (total) VALUES (0)"); err != nil {
		m.Nack()
		fmt.Println(err)
		return
	}
	m.Ack()
	fmt.Println("stored with the offset")
}
