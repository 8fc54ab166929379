package producer_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

var (
	ctx context.Context
	db  *notify.DB
)

func ExampleNew() {
	db, err := notify.Open("user:password@tcp(127.0.0.1:3306)/shop")
	if err != nil {
		log.Fatal(err)
	}
	orders, err := producer.New(db, "orders", producer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ids, err := orders.Publish(context.Background(),
		producer.Message{Payload: []byte(`{"item":1}`), Headers: map[string]string{"source": "web"}},
		producer.Message{Payload: []byte(`{"item":2}`)},
	)
	if err != nil {
		log.Fatal(err)
	}
	log.Println("published", ids)
	if err := db.Close(); err != nil {
		log.Print(err)
	}
}

func ExampleSafeToRetry() {
	orders, err := producer.New(db, "orders", producer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	_, err = orders.Publish(ctx, producer.Message{Payload: []byte("once")})
	switch {
	case err == nil:
	case errors.Is(err, producer.ErrUnknown):
		log.Println("look whether it is there before publishing it again:", err)
	case producer.SafeToRetry(err):
		log.Println("it is not there:", err)
	}
}

// The outbox pattern: the message is published if the business of the transaction
// is committed, and only then.
func ExampleProducer_PublishTx() {
	orders, err := producer.New(db, "orders", producer.Options{Hint: producer.Flag})
	if err != nil {
		log.Fatal(err)
	}
	tx, err := db.Pool().BeginTx(ctx, nil) // or a transaction of your own pool
	if err != nil {
		log.Fatal(err)
	}
	sell := func() error {
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE item = ?", 1); err != nil {
			return err
		}
		if _, err := orders.PublishTx(ctx, tx, producer.Message{Payload: []byte("sold 1")}); err != nil {
			return err
		}
		return tx.Commit()
	}
	if err := sell(); err != nil {
		log.Fatal(errors.Join(err, tx.Rollback()))
	}
	orders.Notify(ctx)
}

func ExampleProducer_Transact() {
	orders, err := producer.New(db, "orders", producer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Transact(ctx, func(ctx context.Context, tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE item = ?", 1); err != nil {
			return err
		}
		_, err := orders.PublishTx(ctx, tx, producer.Message{Payload: []byte("sold 1")})
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleHandshake() {
	handshake, err := producer.NewHandshake(db, "orders", producer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- handshake.Run(ctx) }()
	select {
	case <-handshake.Ready():
	case err := <-ended:
		log.Fatal(err)
	}

	publish, cancel := context.WithTimeout(ctx, time.Minute) // it may be the consumer's turn
	defer cancel()
	if _, err := handshake.Publish(publish, producer.Message{Payload: []byte("sold 1")}); err != nil {
		log.Print(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		log.Print(err)
	}
}
