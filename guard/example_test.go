package guard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// ctx and db are for the examples. db is the result of notify.Open; mqnotify init has created its tables.
var (
	ctx = context.Background()
	db  *notify.DB
)

// TestExamples runs the examples, on each server.
func TestExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		db = openDB(t, s.Database(t))
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE invoices (id INT PRIMARY KEY, sent_at DATETIME(6), state VARCHAR(20) NOT NULL DEFAULT 'open')")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO invoices (id) VALUES (1), (2), (3)")
		mysqltest.Examples(t, map[string]func(){
			"we migrate\n":        ExampleNewOnce,
			"we send invoice 1\n": ExampleNewOnce_table,
			"marked: true\n":      ExampleOnce_TryTx,
			"paid: true, cancelled: false\nthen paid\n": ExampleClaims,
			"the report is ours: true\n":                ExampleEvery_Try,
			"today's report is ours: true\n":            ExampleEvery_period,
			"closed\n":                                  ExampleLockRow,
			"charged and noted\n":                       ExampleTwoStep,
			"imported\n":                                ExampleWith,
			"somebody else imports\n":                   ExampleNewMutex,
			"released with token 1\n":                   ExampleMutex_Take,
			"written by its holder\n":                   ExampleMutex_Fence,
			"it was taken for ever\n":                   ExampleMutex_Break,
		})
	})
}

func ExampleNewOnce() {
	once, err := guard.NewOnce(db, guard.OnceTable{})
	if err != nil {
		fmt.Println(err)
		return
	}
	switch ours, err := once.Try(ctx, "migrate 2026-11"); {
	case err != nil:
		fmt.Println(err) // it may be used up, though no process migrated
	case ours:
		fmt.Println("we migrate")
	default:
		fmt.Println("somebody else does, or did")
	}
}

// Once works on existing rows: here invoices, whose sent_at is NULL until they are sent.
func ExampleNewOnce_table() {
	sent, err := guard.NewOnce(db, guard.OnceTable{Table: "invoices", Key: "id", Time: "sent_at"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if ours, err := sent.Try(ctx, 1); err != nil {
		fmt.Println(err)
	} else if ours {
		fmt.Println("we send invoice 1")
	}
}

// The work in the transaction is done exactly once.
func ExampleOnce_TryTx() {
	sent, err := guard.NewOnce(db, guard.OnceTable{Table: "invoices", Key: "id", Time: "sent_at"})
	if err != nil {
		fmt.Println(err)
		return
	}
	tx, err := db.Pool().BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	ours, err := sent.TryTx(ctx, tx, 2)
	if err == nil && ours {
		_, err = tx.ExecContext(ctx, "UPDATE invoices SET state = 'sent' WHERE id = 2")
	}
	if err == nil {
		err = tx.Commit()
	}
	fmt.Println("marked:", ours && err == nil)
}

// An order is paid or cancelled, but not both, however often either is requested.
func ExampleClaims() {
	claims := guard.NewClaims(db)
	if _, err := claims.Claim(ctx, "order 7"); err != nil {
		fmt.Println(err)
		return
	}
	paid, err := claims.Follow(ctx, "order 7", "order 7: paid")
	if err != nil {
		fmt.Println(err)
		return
	}
	cancelled, err := claims.Follow(ctx, "order 7", "order 7: cancelled")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("paid: %v, cancelled: %v\n", paid, cancelled)
	if next, err := claims.Next(ctx, "order 7"); err == nil && next == "order 7: paid" {
		fmt.Println("then paid")
	}
}

// This runs in the scheduler of every machine.
func ExampleEvery_Try() {
	often := guard.Every{Key: "frequent report", Interval: 9 * time.Minute}
	ours, err := often.Try(ctx, db)
	fmt.Println("the report is ours:", ours && err == nil)
}

// This runs in the scheduler of every machine, at 3:00 in Berlin.
func ExampleEvery_period() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	nightly := guard.Every{Key: "nightly report", Period: "day", Zone: berlin}
	ours, err := nightly.Try(ctx, db)
	fmt.Println("today's report is ours:", ours && err == nil)
}

func ExampleLockRow() {
	invoice := guard.RowRef{Table: "invoices", Key: "id", Value: 3}
	err := guard.LockRow(ctx, db, invoice, 5*time.Second, func(ctx context.Context, tx *sqlx.Tx) error {
		var state string
		if err := tx.GetContext(ctx, &state, "SELECT state FROM invoices WHERE id = 3"); err != nil || state != "open" {
			return err
		}
		_, err := tx.ExecContext(ctx, "UPDATE invoices SET state = 'closed' WHERE id = 3")
		return err
	})
	switch {
	case err == nil:
		fmt.Println("closed")
	case errors.Is(err, notify.ErrNotAcquired):
		fmt.Println("somebody else has it, after 5 s still")
	default:
		fmt.Println(err)
	}
}

func ExampleTwoStep() {
	charge := func(context.Context) error { return nil } // some service, that knows a repetition by its key
	err := guard.TwoStep{
		Call: charge,
		Finish: func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE invoices SET state = 'paid' WHERE id = 1")
			return err
		},
	}.Do(ctx, db, guard.RowRef{Table: "invoices", Key: "id", Value: 1})
	if err == nil {
		fmt.Println("charged and noted")
	} else {
		fmt.Println(err)
	}
}

func ExampleWith() {
	imports, err := guard.NewMutex(db, "import", guard.MutexOptions{})
	if err != nil {
		fmt.Println(err)
		return
	}
	err = guard.With(ctx, imports, func(ctx context.Context) error { // its ctx ends when the lock is lost
		return ctx.Err()
	})
	if err == nil {
		fmt.Println("imported")
	} else {
		fmt.Println(err)
	}
}

// All kinds of mutex are used in the same way; this one is a lease.
func ExampleNewMutex() {
	imports, err := guard.NewMutex(db, "import", guard.MutexOptions{Kind: "lease", TTL: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	held, err := imports.Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := imports.TryLock(ctx); errors.Is(err, notify.ErrNotAcquired) {
		fmt.Println("somebody else imports")
	}
	if err := held.Release(ctx); errors.Is(err, notify.ErrLockLost) {
		fmt.Println("somebody else may have worked at the same time:", err)
	}
}

// A lease needs no process that keeps it: one request takes it, and another one, in another
// process, releases it.
func ExampleMutex_Take() {
	editing, err := guard.NewMutex(db, "document 12", guard.MutexOptions{Kind: "lease", TTL: 10 * time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	token, err := editing.Take(ctx) // to be kept with the form that is edited
	if err != nil {
		fmt.Println(err)
		return
	}
	switch err := editing.Release(ctx, token); {
	case err == nil:
		fmt.Println("released with token", token)
	case errors.As(err, new(*guard.TokenError)):
		fmt.Println("it took too long, and somebody else may have edited it")
	default:
		fmt.Println(err)
	}
}

// A process that has lost the lease and does not know it can't change the
// same database.
func ExampleMutex_Fence() {
	lease, err := guard.NewMutex(db, "books", guard.MutexOptions{Kind: "lease", TTL: 30 * time.Second})
	if err != nil {
		fmt.Println(err)
		return
	}
	held, err := lease.Lock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = held.Release(ctx) }()
	tx, err := db.Pool().BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	_, err = tx.ExecContext(ctx, "UPDATE invoices SET state = 'booked' WHERE state = 'paid'")
	if err == nil {
		err = lease.Fence(ctx, tx, held.Token()) // the last thing before the commit
	}
	if err == nil {
		err = tx.Commit()
	}
	if err == nil {
		fmt.Println("written by its holder")
	} else {
		fmt.Println(err)
	}
}

func ExampleMutex_Break() {
	repair, err := guard.NewMutex(db, "repair", guard.MutexOptions{Kind: "row"})
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := repair.Lock(ctx); err != nil { // by a process that then dies
		fmt.Println(err)
		return
	}
	if broke, err := repair.Break(ctx); err == nil && broke {
		fmt.Println("it was taken for ever")
	}
}
