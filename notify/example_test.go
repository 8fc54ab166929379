package notify_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

// ctx and db are the examples'. db is notify.Open's, and its tables are init's.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples that need a server, on each, without a binary log.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		db = openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		mysqltest.Examples(t, map[string]func(){
			"it is our turn: true\n":                   ExampleSession,
			"released\n":                               ExampleLock,
			"something new, by a poll: true\n":         ExamplePoll,
			"reload: v42\n":                            ExampleListen,
			"the order that waited\n":                  ExampleAwait,
			"something new: true, by poll\n":           ExampleNewAuto,
			"our turn, and something new: true\n":      ExampleNewHandshake,
			"changed: true, 1 times\n":                 ExampleFlag,
			"changed: true, and noted\n":               ExampleFlagRow,
			"more than before: true\n":                 ExampleQuery,
			"a primary: true\n":                        ExampleOpenConfig,
			"still held: true, others waited: false\n": ExampleLock_Turn,
			"in the session's own time zone: true\n":   ExampleSession_Do,
			"it answered in time: true\n":              ExampleSession_Within,
			"who listens to orders reads them now\n":   ExampleDB_Wake,
			"woken without a wait\n":                   ExampleNewWaker,
			"woken by the INSERT itself, if need be\n": ExampleWaker_Conn,
			"sent with the commit\n":                   ExampleNotifyTx,
			"some orders: true <nil>\n":                ExampleDB_SharedSession,
			"held on the shared session: true <nil>\n": ExampleDB_SharedLock,
		})
	})
}

func insertOrder(ctx context.Context) error {
	_, err := db.Pool().ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('an order')")
	return err
}

func ExampleSession() {
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }() // lets the lock go

	lock, err := session.TryLock(ctx, notify.LockName("report", db.Name(), "daily"))
	if errors.Is(err, notify.ErrNotAcquired) {
		fmt.Println("somebody else makes the report")
		return
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := lock.Context(ctx) // ends when the lock is lost
	defer cancel()
	fmt.Println("it is our turn:", ctx.Err() == nil)
}

func ExampleLock() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()

	lock, err := session.Lock(ctx, notify.LockName("report", db.Name(), "daily"), 5*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	switch err := lock.Release(ctx); {
	case errors.Is(err, notify.ErrLockLost):
		fmt.Println("somebody else may have worked at the same time:", err)
	case err != nil:
		fmt.Println(err)
	default:
		fmt.Println("released")
	}
}

func ExamplePoll() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()

	waiter := notify.NewPoll(session, notify.LargestID("orders", "id"), nil)
	defer func() { _ = waiter.Close() }()
	seen, err := waiter.Head(ctx) // before the rows are read
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := db.Pool().Exec("INSERT INTO orders (payload) VALUES ('a message')"); err != nil {
		fmt.Println(err)
		return
	}
	head, err := waiter.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("something new, by a poll:", head != seen)
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
	// In any program; INSERT INTO mqnotify_notification (name, payload) does the same.
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

func ExampleLockName() {
	fmt.Println(notify.LockName("report", "shop", "daily"))
	fmt.Println(notify.LockName("report", "shop", "Daily")) // another one, on every server
	// Output:
	// mqnotify:report:shop:daily
	// mqnotify:report:shop:daily#50f7b20eb2b7f2282617
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
