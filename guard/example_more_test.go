package guard_test

import (
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
			"shipped: true\nforgotten: true\n":            ExampleClaims_FollowTx,
			"we report\nagain in less than a day: true\n": ExampleEvery_Due,
			"resumed with the same token: true\n":         ExampleMutex_Resume,
			"token 1\n":                                   ExampleMutex_TryLock,
		})
	})
}

// One transaction commits the claim of the step and its work.
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

// This runs in the scheduler of every machine.
func ExampleEvery_Due() {
	daily := guard.Every{Key: "daily report", Interval: 24 * time.Hour}
	ours, err := daily.Try(ctx, db)
	if err != nil {
		fmt.Println(err)
		return
	}
	if ours {
		fmt.Println("we report") // the interval is used up, even if that fails
	}
	due, err := daily.Due(ctx, db)
	fmt.Println("again in less than a day:", due > 0 && due < 24*time.Hour && err == nil)
}

// A restarted process continues with the lease that it had.
func ExampleMutex_Resume() {
	lease, err := guard.NewMutex(db, "migration", guard.MutexOptions{Kind: "lease", TTL: time.Minute})
	if err != nil {
		fmt.Println(err)
		return
	}
	token, err := lease.Take(ctx) // and kept in a file
	if err != nil {
		fmt.Println(err)
		return
	}
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

// A lock with a token that only a person frees.
func ExampleMutex_TryLock() {
	repair, err := guard.NewMutex(db, "repair", guard.MutexOptions{Kind: "flag"})
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
