package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// Every message is handled at least once by the group "billing", by one process at
// a time, until Ctrl-C. A process that stands by takes over when it ends.
func ExampleEach() {
	db, err := notify.Open("user:password@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "billing", From: consumer.Beginning()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err = orders.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		log.Printf("%d: %s", m.ID, m.Payload)
		return nil // an error makes it come again
	}))
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// What a handler does in the transaction that it is given is done exactly once: the
// offset is committed with it.
func ExampleBatchTx() {
	db, err := notify.Open("user:password@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "totals", From: consumer.Beginning(), PageRows: 500})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Run(context.Background(), consumer.BatchTx(
		func(ctx context.Context, tx *sqlx.Tx, messages []consumer.Message) error {
			_, err := tx.ExecContext(ctx, "UPDATE totals SET orders = orders + ?", len(messages))
			return err
		}))
	if err != nil {
		log.Fatal(err)
	}
}

// A message that fails three times goes to the dead letters; a table that was
// truncated is begun anew; anything else that can't be mended ends the process.
func ExampleConsumer_Run() {
	db, err := notify.Open("user:password@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	options := consumer.Options{Group: "mails", MaxAttempts: 3, HandlerTimeout: time.Minute}
	for {
		orders, err := consumer.New(db, "orders", options)
		if err != nil {
			log.Fatal(err)
		}
		err = orders.Run(context.Background(), consumer.Each(send))
		if !errors.Is(err, consumer.ErrBelowOffset) {
			log.Fatal(err)
		}
		options.Reset, options.From = true, consumer.Beginning()
	}
}

func send(context.Context, consumer.Message) error { return nil }

// Like tail -n 10 -f, for some rows and columns of any table.
func ExampleNew() {
	db, err := notify.Open("mysql://user:password@127.0.0.1/shop")
	if err != nil {
		log.Fatal(err)
	}
	stock, err := consumer.New(db, "stock_changes", consumer.Options{
		From:    consumer.Last(10),
		Columns: []string{"item", "difference"},
		Where:   "difference < 0",
		Order:   consumer.OrderStrict,
	})
	if err != nil {
		log.Fatal(err)
	}
	err = stock.Run(context.Background(), consumer.Each(func(_ context.Context, m consumer.Message) error {
		_, err := fmt.Printf("%s\n", m.Payload) // a JSON object
		return err
	}))
	if err != nil {
		log.Fatal(err)
	}
}

// All that is there now, and then no more.
func ExampleErrStop() {
	db, err := notify.Open("user:password@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	orders, err := consumer.New(db, "orders", consumer.Options{From: consumer.Beginning(), StopAtEnd: true})
	if err != nil {
		log.Fatal(err)
	}
	seen := 0
	err = orders.Run(context.Background(), consumer.Each(func(context.Context, consumer.Message) error {
		if seen++; seen == 1000 { // or sooner
			return consumer.ErrStop
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleMessage_MarshalJSON() {
	line, err := json.Marshal(consumer.Message{
		ID: 1, Topic: "orders", Payload: []byte("hello"),
		CreatedAt: time.Date(2026, 1, 31, 8, 9, 10, 0, time.UTC),
	})
	fmt.Println(string(line), err)
	// Output: {"id":1,"topic":"orders","created_at":"2026-01-31T08:09:10.000000Z","headers":{},"payload":"hello"} <nil>
}

func ExampleGroupLock() {
	fmt.Println(consumer.GroupLock("shop", "orders", "billing"))
	// Output: mqnotify:group:shop:orders:billing
}
