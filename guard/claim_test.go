package guard_test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A claim has one owner and at most one successor, however often the next step is triggered.
func TestClaims(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			claims := guard.NewClaims(db)
			is := func(want, got bool, err error) {
				t.Helper()
				require.NoError(t, err)
				require.Equal(t, want, got)
			}
			try := func(want bool) func(bool, error) {
				return func(got bool, err error) { t.Helper(); is(want, got, err) }
			}
			try(true)(claims.Claim(t.Context(), "order 1"))
			try(false)(claims.Claim(t.Context(), "order 1"))
			try(true)(claims.Claim(t.Context(), "Order 1"))
			_, err := claims.Follow(t.Context(), "order 2", "pay 2")
			require.ErrorIs(t, err, guard.ErrNoRow)

			next, err := claims.Next(t.Context(), "order 1")
			require.NoError(t, err)
			require.Empty(t, next)
			try(true)(claims.Follow(t.Context(), "order 1", "pay 1"))
			try(false)(claims.Follow(t.Context(), "order 1", "pay 1"))
			try(false)(claims.Follow(t.Context(), "order 1", "cancel 1"))
			try(true)(claims.Follow(t.Context(), "pay 1", "ship 1"))
			next, err = claims.Next(t.Context(), "order 1")
			require.NoError(t, err)
			require.Equal(t, "pay 1", next)
			_, err = claims.Next(t.Context(), "order 2")
			require.ErrorIs(t, err, guard.ErrNoRow)

			_, err = claims.Forget(t.Context(), "order 1")
			require.Error(t, err, "something follows it")
			try(true)(claims.Forget(t.Context(), "ship 1"))
			try(false)(claims.Forget(t.Context(), "ship 1"))
			try(true)(claims.Follow(t.Context(), "pay 1", "ship 1"))

			// In a transaction it counts when the transaction commits.
			for _, commit := range []bool{false, true} {
				tx, err := db.Pool().BeginTxx(t.Context(), nil)
				require.NoError(t, err)
				try(true)(claims.ClaimTx(t.Context(), tx, "order 3"))
				try(true)(claims.FollowTx(t.Context(), tx, "order 3", "pay 3"))
				try(false)(claims.FollowTx(t.Context(), tx, "order 3", "cancel 3"))
				if commit {
					require.NoError(t, tx.Commit())
				} else {
					require.NoError(t, tx.Rollback())
				}
			}
			try(false)(claims.Claim(t.Context(), "order 3"))
			for _, key := range []string{"", "x ", "a\x00"} {
				_, err := claims.Claim(t.Context(), key)
				require.ErrorIs(t, err, notify.ErrOptions)
				_, err = claims.Follow(t.Context(), key, "k")
				require.ErrorIs(t, err, notify.ErrOptions)
			}
			_, err = claims.ClaimTx(t.Context(), db.Pool(), "k")
			require.ErrorIs(t, err, notify.ErrOptions)

			// No key follows itself. Keys that differ in one byte are different.
			_, err = claims.Follow(t.Context(), "k", "k")
			require.ErrorIs(t, err, notify.ErrOptions)
			err = inTx(t, db, func(tx notify.Tx) error {
				_, err := claims.FollowTx(t.Context(), tx, "k", "k")
				return err
			})
			require.ErrorIs(t, err, notify.ErrOptions)
			_, err = claims.Follow(t.Context(), "k", "K")
			require.ErrorIs(t, err, guard.ErrNoRow)
		})
	})
}

// Of sixteen callers that trigger a step of a chain at the same time, one takes it, step after step.
func TestChain(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		claims := guard.NewClaims(db)
		_, err := claims.Claim(t.Context(), "step 0")
		require.NoError(t, err)
		before := guard.Retried()
		for step := range mysqltest.Many(5, 20, 20) {
			var took atomic.Int32
			var all sync.WaitGroup
			for n := range 16 {
				all.Go(func() {
					next := fmt.Sprintf("step %d", step+1)
					if n%4 == 3 {
						next += " by another name"
					}
					through, err := claims.Follow(t.Context(), fmt.Sprintf("step %d", step), next)
					assert.NoError(t, err)
					if through {
						took.Add(1)
					}
				})
			}
			all.Wait()
			require.EqualValues(t, 1, took.Load())
			next, err := claims.Next(t.Context(), fmt.Sprintf("step %d", step))
			require.NoError(t, err)
			if next != fmt.Sprintf("step %d", step+1) {
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_claim SET claim_key = ? WHERE claim_key = ?", fmt.Sprintf("step %d", step+1), next)
			}
		}
		t.Logf("%d statements were run again", guard.Retried()-before)
	})
}
