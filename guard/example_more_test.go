package guard_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// TestMoreExamples runs the examples below, on each server.
func TestMoreExamples(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		db = openDB(t, s.Database(t))
		require.NoError(t, schema.Init(t.Context(), db.Pool()))
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE invoices (id INT PRIMARY KEY, state VARCHAR(20) NOT NULL)")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO invoices VALUES (1, 'open')")
		mysqltest.Examples(t, map[string]func(){
			"shipped: true\nforgotten: true\n":                ExampleClaims_FollowTx,
			"we report\nagain in less than a day: true\n":     ExampleEvery_Do,
			"held: true\nresumed with the same token: true\n": ExampleLease_Resume,
			"token 1\n": ExampleNewFlagMutex,
		})
	})
}

// The step and what it does are committed together.
func ExampleClaims_FollowTx() {
	claims := guard.NewClaims(db)
	tx, err := db.Pool().BeginTx(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if _, err := claims.ClaimTx(ctx, tx, "order 8"); err != nil {
		fmt.Println(err)
		return
	}
	shipped, err := claims.FollowTx(ctx, tx, "order 8", "order 8: shipped")
	if err == nil && shipped {
		_, err = tx.ExecContext(ctx, "UPDATE invoices SET state = 'shipped' WHERE id = 1")
	}
	if err == nil {
		err = tx.Commit()
	}
	fmt.Println("shipped:", shipped && err == nil)

	forgotten, err := claims.Forget(ctx, "order 8: shipped") // what follows before what it follows
	fmt.Println("forgotten:", forgotten && err == nil)
}

// In the scheduler of each machine.
func ExampleEvery_Do() {
	daily, err := guard.NewEvery(db, "daily report", 24*time.Hour)
	if err != nil {
		fmt.Println(err)
		return
	}
	if _, err := daily.Do(ctx, func(context.Context) error {
		fmt.Println("we report")
		return nil
	}); err != nil {
		fmt.Println(err) // the interval is used up, if it was ours
		return
	}
	due, err := daily.Due(ctx)
	fmt.Println("again in less than a day:", due > 0 && due < 24*time.Hour && err == nil)
}

// A process that is started again goes on with the lease that it had.
func ExampleLease_Resume() {
	lease, err := guard.NewLease(db, "migration", guard.LockOptions{TTL: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	token, err := lease.Take(ctx) // and kept in a file
	if err != nil {
		fmt.Println(err)
		return
	}
	status, err := lease.Status(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("held:", status.Held)

	held, err := lease.Resume(ctx, token)
	switch {
	case errors.As(err, new(*guard.TokenError)):
		fmt.Println("it took too long: another one may have begun")
		return
	case err != nil:
		fmt.Println(err)
		return
	}
	fmt.Println("resumed with the same token:", held.Token() == token)
	if err := held.Release(ctx); err != nil {
		fmt.Println(err)
	}
}

// A lock that nothing but a human's decision frees, with a token.
func ExampleNewFlagMutex() {
	repair, err := guard.NewFlagMutex(db, "repair")
	if err != nil {
		fmt.Println(err)
		return
	}
	held, err := repair.TryLock(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("token", held.Token())
	if err := held.Release(ctx); err != nil {
		fmt.Println(err)
	}
}
