package queue

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A task exists if its transaction commits, and only then.
func TestEnqueueTx(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		var got collected
		work(t, q, WorkerOptions{}, got.handle)
		for i, end := range []func(*sqlx.Tx) error{(*sqlx.Tx).Rollback, (*sqlx.Tx).Commit} {
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			ids, err := q.EnqueueTx(t.Context(), tx, Entry{Payload: fmt.Appendf(nil, "%d", i)}, Entry{Payload: []byte("more"), Unique: "key"})
			require.NoError(t, err)
			require.Len(t, ids, 2)
			require.NoError(t, end(tx))
			q.Notify(t.Context())
		}
		got.waitFor(t, "1", "more")
		_, err := q.EnqueueTx(t.Context(), db.Pool(), Entry{})
		require.ErrorIs(t, err, notify.ErrOptions)
	})
}

// The caller's transaction may have the pool's only connection.
func TestEnqueueTxOverOneConnection(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, ordered := range []bool{false, true} {
			_, config := database(t, s, Options{Ordered: ordered})
			db := openConfig(t, config)
			db.Pool().SetMaxOpenConns(1)
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err = newQueue(t, db, Options{}).EnqueueTx(ctx, tx, Entry{Payload: []byte("x")})
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			assert.Equal(t, 1, inState(t, db, stateReady))
		}
	})
}

// A task that any program inserts starts at once if the table of tasks has a wake trigger. Without one the workers
// poll, and a call of mqnotify_wake wakes them.
func TestPlainInsert(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		var got collected
		idleWorker(t, db, config, WorkerOptions{}, got.handle)
		var payloads []string
		for n := range 5 {
			payloads = append(payloads, fmt.Sprint(n))
			mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) VALUES ('mail', ?)", payloads[n])
			got.waitFor(t, payloads...)
		}
		// The task of a transaction starts when that commits.
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "INSERT INTO mqnotify_task (queue, payload) VALUES ('mail', 'tx')")
		mysqltest.Window(t, 300*time.Millisecond)
		require.NoError(t, tx.Commit())
		got.waitFor(t, append(payloads, "tx")...)
	})
}
