package notify_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/notify"
)

// A listener and a producer, each with its part in the gate of "orders". In earnest they
// are in different processes.
func ExampleGate() {
	listener := notify.NewGate(db, "orders", notify.GateOptions{})
	defer func() { _ = listener.Close() }()
	seen, err := listener.Head(ctx) // before the rows are read
	if err != nil {
		fmt.Println(err)
		return
	}

	producer := notify.NewGate(db, "orders", notify.GateOptions{})
	defer func() { _ = producer.Close() }()
	if err := errors.Join(producer.Join(ctx), insertOrder(ctx)); err != nil { // Join: every ring is heard at once
		fmt.Println(err)
		return
	}
	producer.Ring(0) // after the commit

	head, err := listener.Wait(ctx, seen, 10*time.Second)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("something new:", head != seen)
}

// A producer of one's own, whose rows wake the listeners in the packet that stores them.
func ExampleGate_Insert() {
	gate := notify.NewGate(db, "orders", notify.GateOptions{})
	defer func() { _ = gate.Close() }()
	if err := gate.Join(ctx); err != nil {
		fmt.Println(err)
		return
	}
	const query = "INSERT INTO orders (payload) VALUES (?)"
	_, ok, err := gate.Insert(ctx, 1, query, "an order")
	if !ok && err == nil { // not now, or another process keeps the gate
		_, err = db.Pool().ExecContext(ctx, query, "an order")
		gate.Ring(0)
	}
	fmt.Println("stored:", err == nil) // else nobody knows
}

// What woke a listener, for metrics.
func ExampleObserve() {
	woken := map[notify.Wake]int{}
	waiter := notify.Observe(notify.NewGate(db, "orders", notify.GateOptions{}), func(w notify.Wake) { woken[w]++ })
	defer func() { _ = waiter.Close() }()
	seen, err := waiter.Head(ctx)
	if err == nil {
		err = insertOrder(ctx)
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := waiter.Wait(ctx, seen, 10*time.Second); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("by a look:", woken[notify.WakeLook])
}

// A process that does nothing but keep the gate, as `mqnotify keeper orders` does.
func ExampleGate_Keep() {
	ctx, stop := context.WithTimeout(ctx, 100*time.Millisecond) // in earnest: until a signal
	defer stop()
	gate := notify.NewGate(db, "orders", notify.GateOptions{})
	defer func() { _ = gate.Close() }()
	if err := gate.Keep(ctx); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("kept until the end")
}

// Who takes part in a topic's gate, for a page of an operator's.
func ExampleReadGateStatus() {
	gate := notify.NewGate(db, "orders", notify.GateOptions{})
	defer func() { _ = gate.Close() }()
	if _, err := gate.Head(ctx); err != nil { // somebody listens
		fmt.Println(err)
		return
	}
	status, err := notify.ReadGateStatus(ctx, db, "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("the keeper is there:", status.Keeper.ID != 0)
}

// The best way to wait that works here.
func ExampleNewAuto() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = session.Close() }()
	waiter := notify.NewAuto(db, session, "orders", notify.LargestID("orders", "id"), notify.AutoOptions{})
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

// On MySQL with gtid_mode=ON any commit ends the wait, whoever commits.
func ExampleNewGTID() {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	waiter := notify.NewGTID(db, session, notify.LargestID("orders", "id"))
	defer func() { _ = waiter.Close() }() // and the session with it
	seen, err := waiter.Head(ctx)
	switch {
	case errors.Is(err, notify.ErrNoGTID):
		fmt.Println("no GTIDs here: poll")
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	if _, err := waiter.Wait(ctx, seen, time.Minute); err != nil {
		fmt.Println(err)
	}
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
	if err := flag.Set(ctx, db.Pool()); err != nil { // after the commit, by whoever changed it
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
