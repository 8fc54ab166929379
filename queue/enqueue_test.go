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

// A task is entered if its transaction commits, and only then.
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
		require.ErrorIs(t, err, ErrOptions)
	})
}

// Who keeps the gate enters tasks and rings in one packet; what does not fit that goes the other way.
func TestEnqueueRings(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		config.Params = map[string]string{"auto_increment_increment": "3"}
		q := newQueue(t, openConfig(t, config), Options{})
		require.NoError(t, q.Join(t.Context()))
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		ringing := func(entries ...Entry) (ids []uint64, ok bool) {
			rows, err := q.rows(t.Context(), q.db.Pool(), entries)
			require.NoError(t, err)
			ids, ok, err = q.ringing(t.Context(), rows)
			require.NoError(t, err)
			return ids, ok
		}
		var ids []uint64
		eventually(t, func() (ok bool) { // it keeps the gate, whose next phase is ready
			ids, ok = ringing(Entry{Payload: all, Priority: -3}, Entry{Delay: time.Hour}, Entry{Payload: []byte("last")})
			return ok
		}, "it does not ring")
		var payloads [][]byte
		require.NoError(t, db.Pool().Select(&payloads, "SELECT payload FROM mqnotify_task WHERE id IN (?, ?, ?) ORDER BY id", ids[0], ids[1], ids[2]))
		assert.Equal(t, [][]byte{all, {}, []byte("last")}, payloads)
		for _, e := range []Entry{{Unique: "key"}, {Payload: make([]byte, short)}} {
			_, ok := ringing(e)
			assert.False(t, ok)
		}
		assert.Equal(t, []int{2, 1}, []int{inState(t, db, Ready), inState(t, db, Scheduled)})
	})
}

// The caller's transaction may have the pool's only connection.
func TestEnqueueTxOverOneConnection(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, ordered := range []bool{false, true} {
			_, config := database(t, s, Settings{Ordered: ordered})
			db := openConfig(t, config)
			db.Pool().SetMaxOpenConns(1)
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			_, err = newQueue(t, db, Options{NoGate: true}).EnqueueTx(ctx, tx, Entry{Payload: []byte("x")})
			require.NoError(t, err)
			require.NoError(t, tx.Commit())
			assert.Equal(t, 1, inState(t, db, Ready))
		}
	})
}

// A task that any program inserts is found when the queue is notified.
func TestPlainInsert(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		var got collected
		q := newQueue(t, openConfig(t, config), Options{})
		work(t, q, WorkerOptions{Look: time.Hour}, got.handle)
		enqueue(t, q, "first")
		got.waitFor(t, "first")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) VALUES ('mail', 'plain')")
		require.NoError(t, notify.Notify(t.Context(), db, "queue/mail"))
		got.waitFor(t, "first", "plain")
	})
}
