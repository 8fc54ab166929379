package notify_test

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Each round is a burst of commits by several writers, to the topic and to another
// table, then one row, and quiet until every waiter has it: nothing but its own commit
// wakes them for it, and a wake that was lost costs 30 s.
func gtidLosesNoWake(t *testing.T, own *mysqltest.Server) {
	const rounds, waiters, writers = 1000, 3, 4
	db := openTopic(t, own)
	db.Pool().SetMaxIdleConns(writers + waiters)
	run(t, db, "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
	ctx, cancel := context.WithCancelCause(t.Context())
	var running sync.WaitGroup
	var read [waiters]atomic.Uint64
	for i := range read {
		_, waiter := openGTID(t, db)
		running.Go(func() {
			head, err := waiter.Head(ctx)
			for err == nil {
				var id sql.Null[uint64]
				if err = db.Pool().Get(&id, "SELECT MAX(id) FROM orders"); err == nil {
					read[i].Store(id.V)
					head, err = waiter.Wait(ctx, head, time.Hour)
				}
			}
			assert.ErrorIs(t, err, errOurs)
		})
	}
	defer running.Wait()
	defer cancel(errOurs)
	for round := range rounds {
		var burst sync.WaitGroup
		for range writers {
			burst.Go(func() {
				for range rand.IntN(4) {
					table := "other () VALUES ()"
					if rand.IntN(2) == 0 {
						table = "orders (payload) VALUES ('x')"
					}
					_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO "+table)
					assert.NoError(t, err)
				}
			})
		}
		burst.Wait()
		if round%2 == 0 { // one comes in the midst of the waiters' packets, the next one when they rest
			timer := time.NewTimer(rand.N(3 * time.Millisecond))
			<-timer.C
		}
		result, err := db.Pool().ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
		require.NoError(t, err)
		last, err := result.LastInsertId()
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			for i := range read {
				if read[i].Load() != uint64(last) {
					return false
				}
			}
			return true
		}, soon, time.Millisecond, "round %d", round)
	}
}
