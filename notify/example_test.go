package notify_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// ctx and db are for the examples. db is the result of notify.Open; mqnotify init has created its tables.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples that need a server, on each server, without a binary log.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		db = openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		mysqltest.Examples(t, map[string]func(){
			"reload: v42\n":                          ExampleListen,
			"the order that waited\n":                ExampleAwait,
			"changed 1 times\n":                      ExampleFlag,
			"a primary: true\n":                      ExampleOpenConfig,
			"who listens to orders reads them now\n": Example_wake,
			"sent with the commit\n":                 ExampleNotifyTx,
		})
	})
}

func insertOrder(ctx context.Context) error {
	_, err := db.Pool().ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('an order')")
	return err
}

func ExampleListen() {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	notifications, err := notify.Listen(ctx, db, "reload") // any name
	if err != nil {
		fmt.Println(err)
		return
	}
	// Any program can do the same with INSERT INTO mqnotify_notification (name, payload).
	if err := notify.Notify(ctx, db, "reload", "v42"); err != nil {
		fmt.Println(err)
		return
	}
	n := <-notifications
	fmt.Printf("%s: %s\n", n.Name, n.Payload)

	cancel()
	for range notifications { // until it is closed
	}
}

func ExampleAwait() {
	inserted := make(chan error, 1)
	go func() { // any program
		_, err := db.Pool().Exec("INSERT INTO orders (payload) VALUES ('the order that waited')")
		inserted <- err
	}()

	// It blocks until the query returns rows.
	payloads, err := notify.Await[string](ctx, db, "orders", "SELECT payload FROM orders WHERE payload LIKE ?", "%waited")
	if err := errors.Join(err, <-inserted); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(payloads[0])
}

func ExampleFibonacci() {
	waits := &notify.Fibonacci{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}
	for range 8 {
		fmt.Print(waits.NextBackOff(), " ")
	}
	waits.Reset()
	fmt.Println(waits.NextBackOff())
	// Output: 10ms 10ms 20ms 30ms 50ms 80ms 100ms 100ms 10ms
}

// OpenConfig takes a configuration of the driver, for settings that a DSN can't express.
func ExampleOpenConfig() {
	config, err := mysql.ParseDSN(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	config.Timeout = 5 * time.Second
	db, err := notify.OpenConfig(config)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	var readOnly bool
	if err := db.Pool().GetContext(ctx, &readOnly, "SELECT @@read_only"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a primary:", !readOnly)
}

// The notification is received when the transaction commits.
func ExampleNotifyTx() {
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := notify.NotifyTx(ctx, tx, "reload", "v43"); err != nil {
		fmt.Println(err)
		return
	}
	if err := tx.Commit(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("sent with the commit")
}

// Call Wake after a commit to a table that has no wake trigger.
func Example_wake() {
	if err := insertOrder(ctx); err != nil {
		fmt.Println(err)
		return
	}
	if err := db.Wake(ctx, "orders"); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("who listens to orders reads them now")
}

// The flag shows a change without a new id, such as an UPDATE. A consumer with consumer.Options{Flag: "counter"} polls it.
func ExampleFlag() {
	flag := notify.Flag{Topic: "customers"}
	if err := flag.Set(ctx, db.Pool()); err != nil { // after the commit, by the code that made the change
		fmt.Println(err)
		return
	}
	times, err := flag.Read(ctx, db.Pool())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("changed %d times\n", times)
}

func ExampleExponential() {
	waits := notify.Exponential(100*time.Millisecond, time.Second)
	wait := waits.NextBackOff()
	fmt.Println("about 100 ms:", wait >= 80*time.Millisecond && wait <= 120*time.Millisecond)
	// Output: about 100 ms: true
}
