package notify_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

// TestExamples runs the examples that need a server, on each.
func TestExamples(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		t.Setenv("MQNOTIFY_DSN", config.FormatDSN())
		require.NoError(t, schema.Init(t.Context(), openDB(t, config).Pool(), "orders"))
		for want, example := range map[string]func(){
			"it is our turn: true\n":  ExampleSession,
			"released\n":              ExampleLock,
			"something new: true\n":   ExamplePoll,
			"woken\n":                 ExampleListen,
			"the order that waited\n": ExampleAwait,
		} {
			assert.Equal(t, want, output(t, example))
		}
	})
}

// output is what f prints.
func output(t *testing.T, f func()) string {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	stdout := os.Stdout
	os.Stdout = w
	defer func() { os.Stdout = stdout }()
	printed := result(func() string {
		all, _ := io.ReadAll(r)
		return string(all)
	})
	f()
	require.NoError(t, w.Close())
	return receive(t, printed)
}

func ExampleSession() {
	ctx := context.Background()
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
	ctx := context.Background()
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
	ctx := context.Background()
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
	fmt.Println("something new:", head != seen)
}

func ExampleListen() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	wakes, err := notify.Listen(ctx, db, "reload") // any name
	if err != nil {
		fmt.Println(err)
		return
	}
	<-wakes // for what happened before

	if err := notify.Notify(ctx, db, "reload"); err != nil { // anywhere
		fmt.Println(err)
		return
	}
	<-wakes
	fmt.Println("woken")

	cancel()
	for range wakes { // until nothing of it is left
	}
}

func ExampleAwait() {
	ctx := context.Background()
	db, err := notify.Open(os.Getenv("MQNOTIFY_DSN"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
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
