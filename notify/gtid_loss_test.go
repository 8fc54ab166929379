package notify_test

import (
	"context"
	"database/sql"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Each round is a burst of commits by several writers, to the topic and for a while to
// another table too, then one row, and quiet until every waiter has it: nothing but its
// own commit wakes them for it, and a wake that was lost costs 90 s. Two of the waiters
// are far away, so that much happens between a wake and the next wait.
func gtidLosesNoWake(t *testing.T, own *mysqltest.Server) {
	const waiters, writers = 3, 4
	rounds := mysqltest.Size(100, 300, 500)
	config := own.Database(t)
	db := openDB(t, config)
	makeTopic(t, db)
	db.Pool().SetMaxIdleConns(writers + waiters)
	mysqltest.Exec(t, db.Pool(), "CREATE TABLE other (id INT AUTO_INCREMENT PRIMARY KEY)")
	proxy := own.Proxy(t)
	proxy.Latency(2 * time.Millisecond)
	far := openDB(t, proxy.Config(config))
	ctx, cancel := context.WithCancelCause(t.Context())
	var running sync.WaitGroup
	var read [waiters]atomic.Uint64
	for i := range read {
		from := far
		if i == 0 {
			from = db
		}
		_, waiter := openGTID(t, from)
		running.Go(func() {
			head, err := waiter.Head(ctx)
			for err == nil {
				var id sql.Null[uint64]
				if err = from.Pool().Get(&id, "SELECT MAX(id) FROM orders"); err == nil {
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
				for range random().IntN(4) {
					table := "other () VALUES ()"
					if round/25%2 == 0 || random().IntN(2) == 0 {
						table = "orders (payload) VALUES ('x')"
					}
					_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO "+table)
					assert.NoError(t, err)
				}
			})
		}
		burst.Wait()
		if round%2 == 0 { // one comes in the midst of the waiters' packets, the next one when they rest
			timer := time.NewTimer(within(3 * time.Millisecond))
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
