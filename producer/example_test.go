package producer_test

import (
	"context"
	"errors"
	"log"
	"os"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// ctx and db are for the examples. db is the result of notify.Open; mqnotify init and the shop have created its tables.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples on each server.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		var err error
		db, err = notify.OpenConfig(config)
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(ctx, db.Pool(), "orders"))
		for _, statement := range []string{"CREATE TABLE stock (item INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO stock VALUES (1, 5)"} {
			_, err = db.Pool().ExecContext(ctx, statement)
			require.NoError(t, err)
		}
		published := 0
		for _, example := range []struct {
			run       func()
			publishes int
		}{{ExampleNew, 2}, {ExampleSafeToRetry, 1}, {ExampleProducer_PublishTx, 1}, {ExampleProducer_Transact, 1}, {ExampleProducer_Run, 1}} {
			mysqltest.Output(t, example.run)
			published += example.publishes
			var stored int
			require.NoError(t, db.Pool().GetContext(ctx, &stored, "SELECT COUNT(*) FROM orders"))
			require.Equal(t, published, stored)
		}
		var left int
		require.NoError(t, db.Pool().GetContext(ctx, &left, "SELECT n FROM stock"))
		require.Equal(t, 3, left)
	})
}

func ExampleNew() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
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
	case errors.Is(err, notify.ErrUnknown):
		log.Println("look whether it is there before publishing it again:", err)
	case producer.SafeToRetry(err):
		log.Println("it is not there:", err)
	}
}

// The outbox pattern: the message is published if the transaction that stores the order
// commits, and only then.
func ExampleProducer_PublishTx() {
	orders, err := producer.New(db, "orders", producer.Options{SetFlag: true})
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

func ExampleProducer_Run() {
	orders, err := producer.New(db, "orders", producer.Options{Mode: "handshake"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- orders.Run(ctx) }()

	publish, cancel := context.WithTimeout(ctx, time.Minute) // it may be the consumer's turn
	defer cancel()
	if _, err := orders.Publish(publish, producer.Message{Payload: []byte("sold 1")}); err != nil {
		log.Print(err)
	}
	stop()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		log.Print(err)
	}
}
