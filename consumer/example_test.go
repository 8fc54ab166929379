package consumer_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// ctx and db are for the examples. db is the result of notify.Open; mqnotify init and the shop have created its
// tables. ctx ends when the program should end.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples on each server. It ends those that would not end by themselves when
// they have shown their result.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		var err error
		db, err = notify.OpenConfig(config)
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		for _, statement := range []string{
			"INSERT INTO orders (payload) VALUES ('one'), (''), ('three')",
			"CREATE TABLE totals (orders INT NOT NULL)", "INSERT INTO totals VALUES (0)",
			"CREATE TABLE parcels (order_id BIGINT NOT NULL)", "CREATE TABLE bills (order_id BIGINT NOT NULL)",
			"CREATE TABLE stock_changes (id INT AUTO_INCREMENT PRIMARY KEY, item INT, difference INT)",
			"INSERT INTO stock_changes (item, difference) VALUES (1, 5), (1, -1), (2, -3)",
			"CREATE TABLE pictures (id INT AUTO_INCREMENT PRIMARY KEY, name TEXT, content BLOB)",
			"INSERT INTO pictures (name, content) VALUES ('dot', X'00FF')",
		} {
			_, err := db.Pool().ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		const handled = "SELECT COUNT(*) = 1 FROM mqnotify_offset WHERE group_name = '%s' AND settled >= 3"
		for _, example := range []struct {
			run   func()
			want  string
			until string // the query's answer is true
		}{
			{ExampleEach, "", fmt.Sprintf(handled, "billing")},
			{ExampleBatch, "", fmt.Sprintf(handled, "index")},
			{ExampleOptions_membersShare, "", "SELECT COUNT(*) = 3 FROM bills"},
			{ExampleEachTx, "", "SELECT COUNT(*) = 3 FROM parcels"},
			{ExampleBatchTx, "", "SELECT orders = 3 FROM totals"},
			{ExampleHandler, "", fmt.Sprintf(handled, "mails") + " AND (SELECT COUNT(*) = 1 FROM mqnotify_dead_letter)"},
			{ExampleConsumer_Run, "", fmt.Sprintf(handled, "reports")},
			{ExampleConsumer_Writers, "gaps are settled by knowledge: true\n", ""},
			{ExampleNew, "{\"item\":1,\"difference\":-1}\n{\"item\":2,\"difference\":-3}\n", ""},
			{ExampleOptions_from, "3 1 3 1 0\n", ""},
			{ExampleErrStop, "2 of them\n", ""},
			{ExampleConsumer_Status, "billing has 0 to come\n", ""},
			{ExampleMessage_IsBase64, "dot has 2 bytes\n", ""},
			{ExampleConsumer_DeadLetters, "message 2, 0 bytes, 1 attempt\n0 tried again\n", ""},
			{ExampleOptions_watch, "3 messages, after 3\n0 messages, after 3\n", ""},
		} {
			stop := mysqltest.Until(t, &ctx, db.Pool().DB, example.until)
			require.Equal(t, example.want, mysqltest.Output(t, example.run))
			stop()
		}
	})
}

// The group "billing" handles every message at least once, in one process at
// a time, until Ctrl-C. A process that stands by takes over when the active one ends.
func ExampleEach() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "billing", From: "beginning"})
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt)
	err = orders.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		log.Printf("%d: %s", m.ID, m.Payload)
		return nil // an error makes it come again
	}))
	stop()
	if err := errors.Join(err, db.Close()); err != nil {
		log.Fatal(err)
	}
}

// Batch handles a page at a time, for work that is cheaper in pages. If the handler fails in the middle of a page, Handled keeps
// the first messages from being handled again.
func ExampleBatch() {
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "index", From: "beginning", PageRows: 500})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Run(ctx, consumer.Batch(func(ctx context.Context, messages []consumer.Message) error {
		for i, m := range messages {
			if err := send(ctx, m); err != nil {
				return consumer.Handled(i, err)
			}
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
}

// All processes of the group "bills" work at the same time, each on its share of the
// customers: the orders of a customer are billed in order, one after the other.
func ExampleOptions_membersShare() {
	orders, err := consumer.New(db, "orders", consumer.Options{
		Group: "bills", From: "beginning",
		MembersShare: true, PartitionBy: "customer", // a column, or a header of the messages
	})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Run(ctx, consumer.EachTx(
		func(ctx context.Context, tx *sqlx.Tx, m consumer.Message) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO bills (order_id) VALUES (?)", m.ID)
			return err
		}))
	if err != nil {
		log.Fatal(err)
	}
}

// The statements of a handler in its transaction take effect exactly once, because the
// offset is committed with them.
func ExampleEachTx() {
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "parcels", From: "beginning"})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Run(ctx, consumer.EachTx(func(ctx context.Context, tx *sqlx.Tx, m consumer.Message) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO parcels (order_id) VALUES (?)", m.ID)
		return err
	}))
	if err != nil {
		log.Fatal(err)
	}
}

// BatchTx does the same with a page of messages.
func ExampleBatchTx() {
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "totals", From: "beginning", PageRows: 500})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Run(ctx, consumer.BatchTx(
		func(ctx context.Context, tx *sqlx.Tx, messages []consumer.Message) error {
			_, err := tx.ExecContext(ctx, "UPDATE totals SET orders = orders + ?", len(messages))
			return err
		}))
	if err != nil {
		log.Fatal(err)
	}
}

// A message that no attempt can handle becomes a dead letter at once; the messages behind it continue.
func ExampleHandler() {
	orders, err := consumer.New(db, "orders", consumer.Options{Group: "mails", From: "beginning"})
	if err != nil {
		log.Fatal(err)
	}
	err = orders.Run(ctx, consumer.Each(func(ctx context.Context, m consumer.Message) error {
		if len(m.Payload) == 0 {
			return fmt.Errorf("%w: there is nothing in it", notify.ErrDead)
		}
		return send(ctx, m)
	}))
	if err != nil {
		log.Fatal(err)
	}
}

// Of the dead letters of a group, the empty ones are deleted, and the others are tried again by that group alone.
func ExampleConsumer_DeadLetters() {
	mails, err := consumer.New(db, "orders", consumer.Options{Group: "mails"})
	if err != nil {
		log.Fatal(err)
	}
	letters, err := mails.DeadLetters(ctx, consumer.DeadFilter{Whole: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, l := range letters {
		fmt.Printf("message %d, %d bytes, %d attempt\n", l.MessageID, len(l.Payload), l.Attempts)
	}
	if _, err := mails.DeleteDead(ctx, consumer.DeadFilter{Error: "nothing in it"}); err != nil {
		log.Fatal(err)
	}
	messages, _, err := mails.RetryDead(ctx, consumer.DeadFilter{})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(messages), "tried again")
}

// A message that fails three times becomes a dead letter. A table that was
// truncated is read from its beginning. Any other error that Run returns ends the process.
func ExampleConsumer_Run() {
	options := consumer.Options{Group: "reports", From: "beginning", MaxAttempts: 3, HandlerTimeout: time.Minute}
	for {
		orders, err := consumer.New(db, "orders", options)
		if err != nil {
			log.Fatal(err)
		}
		err = orders.Run(ctx, consumer.Each(send))
		switch {
		case err == nil: // ctx ended
			return
		case !errors.Is(err, consumer.ErrBelowOffset):
			log.Fatal(err)
		}
		options.Reset = true
	}
}

func send(context.Context, consumer.Message) error { return nil }

// Writers shows whether this account can see the transactions that may fill a gap.
func ExampleConsumer_Writers() {
	orders, err := consumer.New(db, "orders", consumer.Options{})
	if err != nil {
		log.Fatal(err)
	}
	way, grace, err := orders.Writers(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("gaps are settled by knowledge:", way != "unknown" && grace == 0)
}

// This reads like tail -n 10, with some rows and columns of any table; without StopAtEnd it continues,
// as tail -f does.
func ExampleNew() {
	stock, err := consumer.New(db, "stock_changes", consumer.Options{
		From:      "last 10",
		StopAtEnd: true,
		Columns:   []string{"item", "difference"},
		Where:     "difference < 0",
		Strict:    true,
	})
	if err != nil {
		log.Fatal(err)
	}
	err = stock.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		_, err := fmt.Printf("%s\n", m.Payload) // a JSON object
		return err
	}))
	if err != nil {
		log.Fatal(err)
	}
}

// From is where a new group begins. Later the group continues from its offset.
func ExampleOptions_from() {
	counts := make([]int, 5)
	for i, from := range []string{
		"beginning",
		"3",
		"1h",
		"last 1",
		"end",
	} {
		orders, err := consumer.New(db, "orders", consumer.Options{From: from, StopAtEnd: true})
		if err != nil {
			log.Fatal(err)
		}
		err = orders.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error {
			counts[i]++
			return nil
		}))
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(counts[0], counts[1], counts[2], counts[3], counts[4])
}

// StopAtEnd and Limit end Run at the end of the existing rows, or earlier.
func ExampleErrStop() {
	orders, err := consumer.New(db, "orders", consumer.Options{From: "beginning", StopAtEnd: true})
	if err != nil {
		log.Fatal(err)
	}
	seen := 0
	err = orders.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error {
		if seen++; seen == 2 {
			return consumer.ErrStop
		}
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(seen, "of them")
}

// Status shows a group's progress, for an alert.
func ExampleConsumer_Status() {
	billing, err := consumer.New(db, "orders", consumer.Options{Group: "billing"})
	if err != nil {
		log.Fatal(err)
	}
	status, err := billing.Status(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, g := range status.Groups {
		fmt.Printf("%s has %v to come\n", g.Group, g.Waiting)
	}
}

// A reader without a group stores its position elsewhere, for example in a file.
func ExampleOptions_watch() {
	kept := "beginning"
	for range 2 { // as in two runs of a program
		orders, err := consumer.New(db, "orders", consumer.Options{
			From: kept, StopAtEnd: true, Watch: func(position string) { kept = position },
		})
		if err != nil {
			log.Fatal(err)
		}
		read := 0
		err = orders.Run(ctx, consumer.Batch(func(_ context.Context, messages []consumer.Message) error {
			read += len(messages)
			return nil
		}))
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(read, "messages,", kept)
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

// A row is JSON, which can't contain arbitrary bytes.
func ExampleMessage_IsBase64() {
	pictures, err := consumer.New(db, "pictures", consumer.Options{From: "beginning", Limit: 1})
	if err != nil {
		log.Fatal(err)
	}
	err = pictures.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error {
		var picture struct{ Name, Content string }
		if err := json.Unmarshal(m.Payload, &picture); err != nil {
			return err
		}
		content := []byte(picture.Content)
		if m.IsBase64("content") {
			if content, err = base64.StdEncoding.DecodeString(picture.Content); err != nil {
				return err
			}
		}
		fmt.Println(picture.Name, "has", len(content), "bytes")
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
}
