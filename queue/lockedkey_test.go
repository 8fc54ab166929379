package queue

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// lockKey returns an open transaction that has found the key of a task taken.
func lockKey(t *testing.T, db *notify.DB, q *Queue, key string) *sqlx.Tx {
	t.Helper()
	tx, err := db.Pool().BeginTxx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	ids, err := q.EnqueueTx(t.Context(), tx, Entry{Unique: key})
	require.NoError(t, err)
	require.Equal(t, []uint64{0}, ids)
	return tx
}

// briefly returns a store whose transactions are not repeated after a lock wait timeout. noWait fails if there was one.
func briefly(t *testing.T, db *notify.DB) (l *store, noWait func(err error)) {
	t.Helper()
	l = newStore(t, db, true)
	l.brief = true
	return l, func(err error) { t.Helper(); require.NoError(t, err, "it waited for a lock") }
}

// While FinishTx waits for its task's key, the worker renews its claims, and the waiting one too.
func TestFinishTxWaitsForAKey(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), Entry{Payload: []byte("long")})
		require.NoError(t, err)
		begun, locked, end := make(chan struct{}, 9), make(chan struct{}), make(chan struct{})
		worker := openConfig(t, config)
		w := work(t, newQueue(t, worker, Options{}), WorkerOptions{Concurrency: 2, Visibility: 15 * time.Second}, func(ctx context.Context, task Task) error {
			begun <- struct{}{}
			if task.Unique == "" {
				mysqltest.Await(t, end, "the test's end")
				return context.Cause(ctx)
			}
			mysqltest.Await(t, locked, "the transaction with the key")
			tx, err := worker.Pool().BeginTxx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := FinishTx(ctx, tx, task); err != nil {
				return err
			}
			return tx.Commit()
		})
		<-begun
		<-begun
		tx := lockKey(t, db, q, "key")
		close(locked)
		eventually(t, func() bool {
			return mysqltest.Value[bool](t, db.Pool(), "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE 'SELECT task FROM mqnotify_task_key%'")
		}, "FinishTx does not wait")
		lapse := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(MAX(state_at) AS CHAR) FROM mqnotify_task")
		eventually(t, func() bool {
			return mysqltest.Value[bool](t, db.Pool(), "SELECT UTC_TIMESTAMP(6) > ? FROM DUAL", lapse)
		}, "time stands still")
		assert.Equal(t, 2, inState(t, db, stateInProgress), "their claims hold")
		require.NoError(t, tx.Rollback())
		eventually(t, func() bool { return inState(t, db, stateDone) == 1 }, "the task with the key is not done")
		close(end)
		eventually(t, func() bool { return inState(t, db, stateDone) == 2 }, "the long task is not done")
		assert.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT MAX(attempts) FROM mqnotify_task"))
		assert.Empty(t, keysOf(t, db))
		require.NoError(t, w.end(t))
	})
}

// A task that must die or end while its key is locked keeps no other task from becoming ready, and ends later.
func TestLockedKeyDelaysNoOthers(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "dies"})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), Entry{Unique: "cancelled"})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), Entry{Unique: "free"})
		require.NoError(t, err)
		l, noWait := briefly(t, db)
		claimed, _, err := l.round(t.Context(), nil, 3)
		require.NoError(t, err)
		require.Len(t, claimed, 3)
		_, err = q.Cancel(t.Context(), Filter{IDs: []uint64{claimed[1].ID}})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), Entry{Delay: time.Hour}, Entry{Delay: time.Hour})
		require.NoError(t, err)
		const due = "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND, retries = 0 WHERE unique_key IS NULL OR unique_key <> 'free'"
		mysqltest.Exec(t, db.Pool(), due)
		txs := []*sqlx.Tx{lockKey(t, db, q, "dies"), lockKey(t, db, q, "cancelled")}
		_, _, err = l.round(t.Context(), []outcome{{held: &held{task: claimed[2]}}}, 0)
		noWait(err)
		require.Equal(t, 1, inState(t, db, stateDone))

		ready, err := l.promote(t.Context())
		noWait(err)
		require.Equal(t, 2, ready)
		noWait(l.giveUp(t.Context(), claimed[1:2], func() {}))
		ended, err := l.endLapsed(t.Context())
		noWait(err)
		require.Zero(t, ended)
		require.Equal(t, 2, inState(t, db, stateInProgress))

		for _, tx := range txs {
			require.NoError(t, tx.Rollback())
		}
		_, err = l.promote(t.Context())
		noWait(err)
		ended, err = l.endLapsed(t.Context())
		noWait(err)
		require.Equal(t, 1, ended)
		require.Equal(t, 2, inState(t, db, stateDead))
		require.Empty(t, keysOf(t, db))
	})
}

// A recurring task whose key is locked delays no other one, and is entered later.
func TestLockedKeyOfARecurringTask(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "first", Cron: "@yearly", Entry: Entry{Unique: "key"}}))
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "second", Cron: "@yearly"}))
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_schedule SET next_at = IF(name = 'first', '2020-01-01', '2021-01-01')")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		ids, err := q.EnqueueTx(t.Context(), tx, Entry{Unique: "key"})
		require.NoError(t, err)
		require.NotZero(t, ids[0])
		l, _ := briefly(t, db)
		entered, err := l.enterDue(t.Context())
		require.NoError(t, err)
		require.Zero(t, entered)
		entered, err = l.enterDue(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, entered)
		v, err := l.poll(t.Context())
		require.NoError(t, err)
		require.True(t, v.any && v.recurs && v.due < 0, "it stays due")
		require.NoError(t, tx.Rollback())
		clear(l.locked) // as after a while
		entered, err = l.enterDue(t.Context())
		require.NoError(t, err)
		require.Equal(t, 1, entered)
	})
}

// Cancel holds no other task while it waits for a key.
func TestCancelWaitsForAKey(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"})
		require.NoError(t, err)
		_, err = q.Enqueue(t.Context(), Entry{}, Entry{})
		require.NoError(t, err)
		tx := lockKey(t, db, q, "key")
		cancelled := mysqltest.Result(func() int {
			n, err := q.Cancel(t.Context(), Filter{States: []string{stateReady}})
			assert.NoError(t, err)
			return n
		})
		eventually(t, func() bool { return inState(t, db, stateDead) == 2 }, "the others are not cancelled")
		require.NoError(t, tx.Rollback())
		require.Equal(t, 3, mysqltest.Receive(t, cancelled))
	})
}

// A task that is handled alone, and is cancelled or given back before its handler begins, keeps the worker from nothing.
func TestTaskAloneIsCancelled(t *testing.T) {
	alone := Task{ID: 1, Attempt: 1, Lapses: aloneFrom}
	for what, end := range map[string]func(h *pool){
		"cancelled": func(h *pool) { h.cancel([]Task{alone}) },
		"released":  func(h *pool) { h.release() },
	} {
		h := newPool(1, nil, nil)
		h.take([]Task{alone}, time.Now(), time.Minute)
		require.False(t, h.state(1).wanting, what)
		end(h)
		h.wrote(h.pending())
		require.True(t, h.state(1).wanting, what)
	}
}

// A worker whose claim was lost in a failover does not take another worker's claim of the same attempt for its own.
func TestRenewOfAnotherWorkersClaim(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		enqueue(t, newQueue(t, db, Options{}), "x")
		first, second := newStore(t, db, true), newStore(t, db, true)
		second.owner = "other"
		claimed := claims(t, first, 1)
		require.Len(t, claimed, 1)
		lost, _, _, err := first.renew(t.Context(), claimed)
		require.NoError(t, err)
		require.Empty(t, lost)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'ready', attempts = 0, claim_order = priority, state_at = DEFAULT, owner = ''")
		require.Equal(t, claimed[0].ID, claims(t, second, 1)[0].ID)
		lost, _, _, err = first.renew(t.Context(), claimed)
		require.NoError(t, err)
		require.Len(t, lost, 1)
	})
}

// A task that must be handled alone is not claimed together with a reserved one.
func TestReservedAndAlone(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1")
		l := reserving(t, db, 2)
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_task WHERE id = ?", ids[1]) // as if another worker had it
		enqueue(t, q, "alone")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET lapses = ? WHERE id > ?", aloneFrom, ids[1])
		claimed := claims(t, l, 2)
		require.Len(t, claimed, 1)
		require.Equal(t, ids[0], claimed[0].ID)
		require.NotZero(t, l.refused.ID)
	})
}
