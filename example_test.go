package mqnotify_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

type Order struct {
	Customer string
	Total    int
}

var (
	ctx       = context.Background()
	db        *mqnotify.DB
	beginning = mqnotify.ConsumeOptions{From: "beginning"}
)

// TestExamples runs the examples on each server.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		db = open(t, config)
		require.NoError(t, db.Init(t.Context(), "orders"))
		mysqltest.Exec(t, db.Core().Pool(), "CREATE TABLE payments (id BIGINT AUTO_INCREMENT PRIMARY KEY, customer VARCHAR(20), amount DECIMAL(9,2))")
		mysqltest.Examples(t, map[string]func(){
			"Ada buys for 3\n":            Example,
			"Bea buys for 4\n":            ExamplePublish,
			"Cem buys for 5\n":            ExamplePublishTx,
			"Dan buys for 6\n":            ExampleConsumeTx,
			"Eve pays 9.5\n":              ExampleConsume_rows,
			"reload: prices\n":            ExampleDB_Listen,
			"someone has paid 20\n":       ExampleAwait,
			"mail to Fay, mail to Gil\n":  ExampleWork,
			"nobody else does this now\n": ExampleDB_Lock,
		})
	})
}

func Example() {
	db, err := mqnotify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	if err := errors.Join(db.Init(ctx, "orders"), mqnotify.Publish(ctx, db, "orders", Order{"Ada", 3})); err != nil {
		fmt.Println(err)
		return
	}
	err = mqnotify.Consume(ctx, db, "orders", "mailer", func(_ context.Context, m mqnotify.Message[Order]) error {
		fmt.Println(m.Value.Customer, "buys for", m.Value.Total)
		return mqnotify.ErrStop // a service returns nil, and goes on
	}, beginning)
	if err != nil {
		fmt.Println(err)
	}
}

// consumeOne prints the next order of the group.
func consumeOne(group string) {
	err := mqnotify.Consume(ctx, db, "orders", group, func(_ context.Context, m mqnotify.Message[Order]) error {
		fmt.Println(m.Value.Customer, "buys for", m.Value.Total)
		return mqnotify.ErrStop
	}, beginning)
	if err != nil {
		fmt.Println(err)
	}
}

func ExamplePublish() {
	if err := mqnotify.Publish(ctx, db, "orders", Order{"Bea", 4}); err != nil {
		fmt.Println(err)
		return
	}
	consumeOne("mailer")
}

// The message is published with the order, or not at all.
func ExamplePublishTx() {
	tx, err := db.Core().Pool().BeginTxx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	// ... the order's own rows ...
	if err := mqnotify.PublishTx(ctx, db, tx, "orders", Order{"Cem", 5}); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	consumeOne("mailer")
}

// The statements of the handler in the transaction take effect once for each message.
func ExampleConsumeTx() {
	if err := mqnotify.Publish(ctx, db, "orders", Order{"Dan", 6}); err != nil {
		fmt.Println(err)
		return
	}
	err := mqnotify.ConsumeTx(ctx, db, "orders", "mailer", func(ctx context.Context, tx *sqlx.Tx, m mqnotify.Message[Order]) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO payments (customer, amount) VALUES (?, ?)", m.Value.Customer, m.Value.Total)
		if err != nil {
			return err
		}
		fmt.Println(m.Value.Customer, "buys for", m.Value.Total)
		return mqnotify.ErrStop
	}, beginning)
	if err != nil {
		fmt.Println(err)
	}
}

// Consume also reads the rows of a table that other programs fill.
func ExampleConsume_rows() {
	type Payment struct {
		Customer string  `db:"customer"`
		Amount   float64 `db:"amount"`
	}
	if _, err := db.Core().Pool().ExecContext(ctx, "INSERT INTO payments (customer, amount) VALUES ('Eve', 9.50)"); err != nil {
		fmt.Println(err)
		return
	}
	err := mqnotify.Consume(ctx, db, "payments", "books", func(_ context.Context, m mqnotify.Message[Payment]) error {
		if m.Value.Customer != "Eve" {
			return nil
		}
		fmt.Println(m.Value.Customer, "pays", m.Value.Amount)
		return mqnotify.ErrStop
	}, mqnotify.ConsumeOptions{From: "beginning"})
	if err != nil {
		fmt.Println(err)
	}
}

func ExampleDB_Listen() {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	notifications, err := db.Listen(ctx, "reload")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := db.Notify(ctx, "reload", "prices"); err != nil {
		fmt.Println(err)
		return
	}
	n := <-notifications
	fmt.Printf("%s: %s\n", n.Name, n.Payload)
}

func ExampleAwait() {
	go func() {
		_, _ = db.Core().Pool().ExecContext(ctx, "INSERT INTO payments (customer, amount) VALUES ('Hal', 20)")
	}()
	amounts, err := mqnotify.Await[float64](ctx, db, "payments", "SELECT amount FROM payments WHERE amount >= ?", 20)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("someone has paid", amounts[0])
}

func ExampleWork() {
	if err := db.InitQueues(ctx, "mail"); err != nil {
		fmt.Println(err)
		return
	}
	if err := mqnotify.Enqueue(ctx, db, "mail", Order{Customer: "Fay"}); err != nil {
		fmt.Println(err)
		return
	}
	tx, err := db.Core().Pool().BeginTxx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }()
	if err := mqnotify.EnqueueTx(ctx, db, tx, "mail", Order{Customer: "Gil"}); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	ctx, stop := context.WithCancel(ctx) // a service works until it is stopped
	defer stop()
	err = mqnotify.Work(ctx, db, "mail", func(_ context.Context, t mqnotify.Task[Order]) error {
		fmt.Print("mail to ", t.Value.Customer)
		if t.Value.Customer == "Gil" {
			fmt.Println()
			stop()
		} else {
			fmt.Print(", ")
		}
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
}

func ExampleDB_Lock() {
	err := db.Lock(ctx, "nightly report", func(context.Context) error {
		fmt.Println("nobody else does this now")
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
}
