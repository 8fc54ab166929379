package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
)

// A wake trigger of the table ends the wait, or a poll where there is none.
func ExampleNewAuto() {
	waiter := notify.NewAuto(db, notify.LargestID("orders", "id"), notify.AutoOptions{})
	defer func() { _ = waiter.Close() }()
	seen, err := waiter.Head(ctx)
	if err == nil {
		err = insertOrder(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	head, err := waiter.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	mode, _ := waiter.Mode()
	fmt.Printf("something new: %v, by %s\n", head != seen, mode)
}

// The consumer's side of the handshake; the producer's is producer.NewHandshake.
func ExampleNewHandshake() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	waiter := notify.NewHandshake(session, notify.HandshakeName(db.Name(), "orders"), notify.LargestID("orders", "id"), nil)
	defer func() { _ = waiter.Close() }() // and the session with it
	seen, err := waiter.Head(ctx)
	if err == nil {
		err = insertOrder(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	head, err := waiter.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("our turn, and something new:", head != seen) // until the next Wait
}

// The flag says that something changed which has no new id, such as an UPDATE.
func ExampleFlag() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	waiter := notify.NewPoll(session, notify.FlagCounter("customers"), nil)
	defer func() { _ = waiter.Close() }()
	seen, err := waiter.Head(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}

	flag := notify.Flag{Topic: "customers"}
	if err := flag.Set(ctx, db.Pool()); err != nil { // after the commit, by the code that made the change
		fmt.Println(err)
		return
	}
	head, err := waiter.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	times, err := flag.Read(ctx, db.Pool())
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("changed: %v, %d times\n", head != seen, times)
}

// For one reader, which deletes the flag when it has seen it.
func ExampleFlagRow() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	waiter := notify.NewPoll(session, notify.FlagRow("prices"), nil)
	defer func() { _ = waiter.Close() }()
	seen, err := waiter.Head(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	flag := notify.Flag{Topic: "prices"}
	if err := flag.Set(ctx, db.Pool()); err != nil {
		fmt.Println(err)
		return
	}
	head, err := waiter.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("changed: %v, and noted\n", head != seen)
}

// Any number that a query can tell, looked at with waits of one's own.
func ExampleQuery() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	orders := notify.Query("SELECT COUNT(*) FROM orders WHERE payload LIKE ?", "an%")
	waiter := notify.NewPoll(session, orders, notify.Exponential(10*time.Millisecond, time.Second))
	defer func() { _ = waiter.Close() }()
	seen, err := waiter.Head(ctx)
	if err == nil {
		err = insertOrder(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	head, err := waiter.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	before, _ := seen.Value()
	now, _ := head.Value()
	fmt.Println("more than before:", now > before)
}

// With the driver's own configuration, where a DSN can't say what is needed.
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
	can, err := db.Capabilities(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("a primary:", !can.ReadOnly && !can.WritersElsewhere())
}

// To let the next one have its turn, and to be the one after that.
func ExampleLock_Turn() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	lock, err := session.TryLock(ctx, notify.LockName("printer", db.Name()))
	if err != nil {
		fmt.Println(err)
		return
	}
	taken, err := lock.Turn(ctx, 5*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	held, err := lock.Held(ctx) // asks the server
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("still held: %v, others waited: %v\n", held, taken)
}

// Statements over the very connection that has the locks.
func ExampleSession_Do() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	err = session.Do(ctx, func(conn *sqlx.Conn) error {
		var zone string
		if err := conn.GetContext(ctx, &zone, "SELECT @@time_zone"); err != nil {
			return err
		}
		fmt.Println("in the session's own time zone:", zone == "+00:00")
		return nil
	})
	if err != nil {
		fmt.Println(err)
	}
}

// A limit to how long the server may take, that costs no goroutine.
func ExampleSession_Within() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	err = session.Do(ctx, func(conn *sqlx.Conn) error {
		return session.Within(ctx, 10*time.Second, func(ctx context.Context) error {
			var version string
			if err := conn.GetContext(ctx, &version, "SELECT VERSION()"); err != nil {
				return err
			}
			fmt.Println("it answered in time:", version != "")
			return nil
		})
	})
	if err != nil {
		fmt.Println(err)
	}
}

// After a commit to a table that has no wake trigger.
func ExampleDB_Wake() {
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

// For a program that commits often: the calls are made in the background, and only where no wake trigger does the same.
func ExampleNewWaker() {
	waker := notify.NewWaker(db, "orders", slog.Default())
	defer func() { _ = waker.Close() }() // makes the last call
	if err := insertOrder(ctx); err != nil {
		fmt.Println(err)
		return
	}
	waker.Wake()
	if _, err := db.Pool().ExecContext(ctx, "UPDATE orders SET payload = 'changed'"); err != nil {
		fmt.Println(err)
		return
	}
	waker.WakeAlways() // the trigger tells of inserts
	fmt.Println("woken without a wait")
}

// The INSERT and the call travel together. Where a wake trigger makes the call needless, or that is not known yet, there is
// no such connection.
func ExampleWaker_Conn() {
	waker := notify.NewWaker(db, "orders", slog.Default())
	defer func() { _ = waker.Close() }()
	conn, err := waker.Conn(ctx)
	switch {
	case err != nil:
		fmt.Println(err)
		return
	case conn == nil:
		if err := insertOrder(ctx); err != nil {
			fmt.Println(err)
			return
		}
		waker.Wake()
	default:
		defer func() { _ = conn.Close() }()
		_, err := conn.ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('an order'); CALL mqnotify_wake('orders')")
		if err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("woken by the INSERT itself, if need be")
}

// The notification is received if the transaction commits.
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

// A session that others use at the same time, for short statements.
func ExampleDB_SharedSession() {
	session, release, err := db.SharedSession(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer release()
	if err := insertOrder(ctx); err != nil {
		fmt.Println(err)
		return
	}
	var orders int
	err = session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		return conn.GetContext(ctx, &orders, "SELECT COUNT(*) FROM orders")
	})
	fmt.Println("some orders:", orders > 0, err)
}

// Many locks on one session: the loss of the session loses all of them.
func ExampleDB_SharedLock() {
	lock, release, err := db.SharedLock(ctx, notify.LockName("report", db.Name(), "shared"))
	if err != nil { // ErrNotAcquired: another session has it
		fmt.Println(err)
		return
	}
	defer func() { _ = release() }()
	held, err := lock.Held(ctx)
	fmt.Println("held on the shared session:", held, err)
}
