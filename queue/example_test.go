package queue_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

// ctx, db and q are for the examples. db is the result of notify.Open; mqnotify init and the shop have created its
// tables. ctx ends when the program should end.
var (
	ctx = context.Background()
	db  *notify.DB
	q   *queue.Queue
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
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		for _, statement := range []string{
			"CREATE TABLE stock (item INT PRIMARY KEY, n INT NOT NULL)", "INSERT INTO stock VALUES (1, 5)",
			"CREATE TABLE account (id VARCHAR(10) PRIMARY KEY, balance INT NOT NULL)", "INSERT INTO account VALUES ('7', 0)",
		} {
			_, err := db.Pool().ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		require.NoError(t, queue.Create(t.Context(), db, "mail", queue.Options{}))
		q, err = queue.New(db, "mail", queue.Options{})
		require.NoError(t, err)
		defer q.Close()
		for _, example := range []struct {
			run   func()
			want  string
			until string // the query's answer is true
		}{
			{Example, "", "SELECT COUNT(*) = 1 FROM mqnotify_task WHERE state = 'done'"},
			{ExampleQueue_Enqueue, "", ""},
			{ExampleQueue_EnqueueTx, "", ""},
			{ExampleQueue_Work, "", "SELECT COUNT(*) >= 5 FROM mqnotify_task WHERE state = 'done'"},
			{ExampleFinishTx, "", "SELECT balance = 1 FROM account"},
			{ExampleQueue_Schedule, "nightly report\nforgotten: true\n", ""},
			{ExampleQueue_Cancel, "1 cancelled\n", ""},
			{ExampleQueue_List, "1 were dead, 1 are tried again\n", ""},
			{ExampleQueue_Counts, "some are done: true, ordered: false\n", ""},
			{ExampleQueue_Prune, "0 were that old\n", ""},
		} {
			stop := mysqltest.Until(t, &ctx, db.Pool().DB, example.until)
			require.Equal(t, example.want, mysqltest.Output(t, example.run))
			stop()
		}
	})
}

func send(context.Context, []byte) error { return nil }

func Example() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		log.Fatal(err)
	}
	if err := schema.Init(ctx, db.Pool()); err != nil { // once, as `mqnotify init --queue mail` does
		log.Fatal(err)
	}
	if err := queue.Create(ctx, db, "mail", queue.Options{}); err != nil {
		log.Fatal(err)
	}
	q, err := queue.New(db, "mail", queue.Options{})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := q.Enqueue(ctx, queue.Entry{Payload: []byte("hello"), Delay: 10 * time.Millisecond}); err != nil {
		log.Fatal(err)
	}
	err = q.Work(ctx, queue.WorkerOptions{Concurrency: 4}, func(ctx context.Context, task queue.Task) error {
		return send(ctx, task.Payload)
	})
	if err := errors.Join(err, q.Close(), db.Close()); err != nil {
		log.Fatal(err)
	}
}

func ExampleQueue_Enqueue() {
	ids, err := q.Enqueue(ctx,
		queue.Entry{Payload: []byte("now")},
		queue.Entry{Payload: []byte("first"), Priority: -1},
		queue.Entry{Payload: []byte("tomorrow"), Delay: 24 * time.Hour, Retries: -1},
		queue.Entry{Payload: []byte("once"), Unique: "report of May"},
	)
	if err != nil {
		log.Fatal(err)
	}
	if ids[3] == 0 {
		log.Println("the report of May is queued already")
	}
}

// The task is entered if the transaction that stores the order commits, and only then.
func ExampleQueue_EnqueueTx() {
	enter := func(tx *sqlx.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE stock SET n = n - 1 WHERE item = ?", 1); err != nil {
			return err
		}
		if _, err := q.EnqueueTx(ctx, tx, queue.Entry{Payload: []byte("ship 1")}); err != nil {
			return err
		}
		return tx.Commit()
	}
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		log.Fatal(err)
	}
	if err := enter(tx); err != nil {
		log.Fatal(errors.Join(err, tx.Rollback()))
	}
	q.Notify(ctx)
}

// The handler's statements and the end of the task are one transaction.
func ExampleFinishTx() {
	if _, err := q.Enqueue(ctx, queue.Entry{Payload: []byte("7")}); err != nil { // an account
		log.Fatal(err)
	}
	handler := func(ctx context.Context, task queue.Task) error {
		tx, err := db.Pool().BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // does nothing after a commit
		if _, err := tx.ExecContext(ctx, "UPDATE account SET balance = balance + 1 WHERE id = ?", task.Payload); err != nil {
			return err
		}
		if err := queue.FinishTx(ctx, tx, task); err != nil {
			return err
		}
		return tx.Commit()
	}
	if err := q.Work(ctx, queue.WorkerOptions{}, handler); err != nil {
		log.Fatal(err)
	}
}

func ExampleQueue_Work() {
	options := queue.WorkerOptions{
		Concurrency: 8,
		Visibility:  time.Minute,
		Backoff:     func(attempt int) time.Duration { return time.Duration(attempt) * time.Minute },
		Count:       func(what string) { log.Println(what) }, // a counter of your metrics
	}
	err := q.Work(ctx, options, func(ctx context.Context, task queue.Task) error {
		err := send(ctx, task.Payload)
		if len(task.Payload) == 0 {
			return fmt.Errorf("nothing to send: %w", notify.ErrDead)
		}
		return err
	})
	if err != nil {
		log.Fatal(err)
	}
}

func ExampleQueue_Schedule() {
	err := q.Schedule(ctx, queue.Recurring{
		Name:  "nightly report",
		Cron:  "CRON_TZ=Europe/Berlin 0 3 * * *",
		Entry: queue.Entry{Payload: []byte("report"), Unique: "nightly report"},
	})
	if err != nil {
		log.Fatal(err)
	}
	recurring, err := q.Schedules(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range recurring {
		fmt.Println(r.Name)
	}
	was, err := q.Unschedule(ctx, "nightly report")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("forgotten:", was)
}

func ExampleQueue_Cancel() {
	ids, err := q.Enqueue(ctx, queue.Entry{Payload: []byte("tomorrow"), Delay: 24 * time.Hour})
	if err != nil {
		log.Fatal(err)
	}
	n, err := q.Cancel(ctx, queue.Filter{IDs: ids})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(n, "cancelled")
}

func ExampleQueue_List() {
	dead, err := q.List(ctx, queue.Filter{States: []string{"dead"}})
	if err != nil {
		log.Fatal(err)
	}
	for _, task := range dead {
		log.Println(task.ID, task.LastError)
	}
	n, err := q.Retry(ctx, queue.Filter{}, 5) // all of them, once more
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(dead), "were dead,", n, "are tried again")
}

func ExampleQueue_Counts() {
	counts, err := q.Counts(ctx)
	if err != nil {
		log.Fatal(err)
	}
	for state, n := range counts {
		log.Println(state, n)
	}
	ordered, err := q.Ordered(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("some are done: %v, ordered: %v\n", counts["done"] > 0, ordered)
}

func ExampleQueue_Prune() {
	deleted, err := q.Prune(ctx, 7*24*time.Hour, "done", "dead")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(deleted, "were that old")
}
