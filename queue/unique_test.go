package queue

import (
	"context"
	"database/sql"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A key is free when its task no longer exists, for whatever reason, and whatever the snapshot of the transaction that
// wants it is.
func TestUniqueKeyOfADeletedTask(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		config.ClientFoundRows = true
		q := newQueue(t, openConfig(t, config), Options{})
		unique := Entry{Unique: "key"}
		enter := func() uint64 {
			ids, err := q.Enqueue(t.Context(), unique)
			require.NoError(t, err)
			return ids[0]
		}
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		var before int
		require.NoError(t, tx.Get(&before, "SELECT COUNT(*) FROM mqnotify_task")) // what it sees from now on
		first := enter()
		require.NotZero(t, first)
		entries := []Entry{{Payload: []byte("a")}, unique, {Payload: []byte("b")}}
		ids, err := q.EnqueueTx(t.Context(), tx, entries...)
		if isolated := snapshotIsolation(t, s, db); isolated { // what has changed since its first read it may not touch
			require.True(t, server.Is(err, server.ErrCheckRead), err)
			require.NoError(t, tx.Rollback())
			tx, err = db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			ids, err = q.EnqueueTx(t.Context(), tx, entries...)
		}
		require.NoError(t, err)
		assert.Equal(t, []bool{true, false, true}, []bool{ids[0] != 0, ids[1] != 0, ids[2] != 0})
		require.NoError(t, tx.Commit())
		assert.Equal(t, 3, inState(t, db, stateReady))
		for _, end := range []string{
			"UPDATE mqnotify_task SET state = 'done'", "UPDATE mqnotify_task SET state = 'dead'",
			"DELETE FROM mqnotify_task", "TRUNCATE mqnotify_task",
		} {
			require.Zero(t, enter(), end)
			mysqltest.Exec(t, db.Pool(), end)
			enqueue(t, q, "ids may be given out again", "and are another's")
			require.NotZero(t, enter(), end)
		}
		require.Zero(t, enter())
	})
}

func snapshotIsolation(t *testing.T, s *mysqltest.Server, db *notify.DB) bool {
	if !s.IsMariaDB() {
		return false
	}
	var name, on string
	err := db.Pool().QueryRowContext(t.Context(), "SHOW VARIABLES LIKE 'innodb_snapshot_isolation'").Scan(&name, &on)
	if !errors.Is(err, sql.ErrNoRows) {
		require.NoError(t, err)
	}
	return on == "ON"
}

// A task that was dead has no key any more, and another task may have it.
func TestUniqueKeyOfADeadTask(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		enter := func(keys ...string) (ids []uint64) {
			for _, key := range keys {
				id, err := q.Enqueue(t.Context(), Entry{Unique: key})
				require.NoError(t, err)
				ids = append(ids, id...)
			}
			return ids
		}
		dead := enter("a", "b")
		n, err := q.Cancel(t.Context(), Filter{IDs: dead})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		assert.Empty(t, keysOf(t, db))
		require.NotContains(t, enter("a"), uint64(0))
		_, err = q.Retry(t.Context(), Filter{IDs: dead}, 0)
		require.NoError(t, err)
		all, err := q.List(t.Context(), Filter{IDs: dead})
		require.NoError(t, err)
		require.Len(t, all, 2)
		assert.Empty(t, all[0].Unique+all[1].Unique)
		assert.Equal(t, []bool{false, true}, []bool{enter("a")[0] != 0, enter("b")[0] != 0})
		_, err = q.Cancel(t.Context(), Filter{IDs: dead})
		require.NoError(t, err)
		assert.Equal(t, []string{"a", "b"}, keysOf(t, db), "which are of others")
	})
}

func keysOf(t *testing.T, db *notify.DB) (keys []string) {
	t.Helper()
	require.NoError(t, db.Pool().Select(&keys, "SELECT unique_key FROM mqnotify_task_key ORDER BY unique_key"))
	return keys
}

// A key ends with its task, however that ends.
func TestUniqueEnds(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		for _, discard := range []bool{false, true} {
			db, config := database(t, s)
			q := newQueue(t, db, Options{})
			_, err := q.Enqueue(t.Context(), Entry{Unique: "done"}, Entry{Unique: "dead", Retries: noRetries}, Entry{Unique: "FinishTx"},
				Entry{Unique: "later", Delay: time.Hour}, Entry{})
			require.NoError(t, err)
			require.Equal(t, []string{"FinishTx", "dead", "done", "later"}, keysOf(t, db))
			pool := openConfig(t, config).Pool()
			w := work(t, q, WorkerOptions{Claim: mode, Discard: discard, Batch: 4}, func(ctx context.Context, task Task) error {
				switch task.Unique {
				case "dead":
					return notify.ErrDead
				case "FinishTx":
					tx, err := pool.BeginTxx(ctx, nil)
					if err != nil {
						return err
					}
					return errors.Join(FinishTx(ctx, tx, task), tx.Commit())
				}
				return nil
			})
			eventually(t, func() bool { return w.of("done") == 3 && w.of("dead") == 1 }, "they don't end")
			assert.Equal(t, []string{"later"}, keysOf(t, db))
			require.NoError(t, w.end(t))

			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET retries = 0, state = 'in progress', state_at = '2000-01-01 00:00:00' WHERE unique_key = 'later'")
			_, err = newStore(t, db, mode == claimSkipLocked).promote(t.Context())
			require.NoError(t, err)
			assert.Empty(t, keysOf(t, db), "its claim lapsed, and it is dead")

			mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task_key VALUES ('mail', 'a', 1), ('mail', 'b', 2), ('other', 'a', 1)")
			_, err = q.Prune(t.Context(), 0)
			require.NoError(t, err)
			assert.Equal(t, []string{"a"}, keysOf(t, db), "of another queue")
		}
	})
}

// A lost claim does not free the key of the task, which another worker has.
func TestUniqueKeyOfALateOutcome(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, discard := range []bool{false, true} {
			db, _ := database(t, s)
			q := newQueue(t, db, Options{})
			_, err := q.Enqueue(t.Context(), Entry{Unique: "key"})
			require.NoError(t, err)
			late, other := newStore(t, db, true), newStore(t, db, true)
			late.discard, other.discard = discard, discard
			old, _, err := late.round(t.Context(), nil, 1)
			require.NoError(t, err)
			require.Len(t, old, 1)
			lapse(t, db, other)
			now, _, err := other.round(t.Context(), nil, 1)
			require.NoError(t, err)
			for i, l := range []*store{late, other} {
				_, _, err = l.round(t.Context(), []outcome{{held: &held{task: [][]Task{old, now}[i][0]}}}, 0)
				require.NoError(t, err)
				assert.Len(t, keysOf(t, db), 1-i)
			}
		}
	})
}

// A transaction that finds a key taken, and stays open, keeps the task's worker only from
// ending the task.
func TestUniqueKeyHoldsOnlyTheEnd(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		schematest.Init(t, db.Pool(), []string{schema.RingTable})
		q := newQueue(t, openConfig(t, config), Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"}, Entry{})
		require.NoError(t, err)
		l := newStore(t, db, true)
		retried := 0
		l.retried = func() { retried++ }
		tasks, _, err := l.round(t.Context(), nil, 2)
		require.NoError(t, err)
		require.Len(t, tasks, 2)
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("INSERT INTO mqnotify_ring (name, size) VALUES ('x', 1)") // it has begun in InnoDB, too
		require.NoError(t, err)
		ids, err := q.EnqueueTx(t.Context(), tx, Entry{Unique: "key"})
		require.NoError(t, err)
		require.Equal(t, []uint64{0}, ids)
		lost, _, _, err := l.renew(t.Context(), tasks)
		require.NoError(t, err)
		require.Empty(t, lost)
		other := openConfig(t, config) // nor from their answer those who ask the same
		second, err := other.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = second.Rollback() }()
		ids, err = q.EnqueueTx(t.Context(), second, Entry{Unique: "key"})
		require.NoError(t, err)
		require.Equal(t, []uint64{0}, ids)
		_, err = q.Enqueue(t.Context(), Entry{}, Entry{Unique: "another"})
		require.NoError(t, err)
		assert.Zero(t, retried, "it waited for a lock")
	})
}

// It does not keep that worker from renewing its claims, from claiming other tasks and from ending those, also those with other
// keys; when the key is free, the task ends as well.
func TestUniqueKeyHoldsNoRenewal(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"}, Entry{Unique: "free"}, Entry{Payload: []byte("long")})
		require.NoError(t, err)
		begun, ends, end := make(chan struct{}, 3), make(chan struct{}), make(chan struct{})
		options := WorkerOptions{Claim: mode, Concurrency: 4, Visibility: 12 * time.Second}
		w := work(t, newQueue(t, openConfig(t, config), Options{}), options, func(ctx context.Context, task Task) error {
			waits := ends
			switch {
			case string(task.Payload) == "long":
				waits = end
			case task.Unique == "":
				return nil
			}
			begun <- struct{}{}
			select {
			case <-waits:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		for range 3 {
			<-begun
		}
		tx := lockKey(t, db, q, "key")
		lapse := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(MAX(state_at) AS CHAR) FROM mqnotify_task")
		close(ends)
		enqueue(t, q, "other")
		eventually(t, func() bool { return inState(t, db, stateDone) == 2 }, "the other task, and that with a free key, are not done")
		eventually(t, func() bool {
			return mysqltest.Value[bool](t, db.Pool(), "SELECT UTC_TIMESTAMP(6) > ? FROM DUAL", lapse)
		}, "time stands still")
		assert.Equal(t, 2, inState(t, db, stateInProgress), "their claims hold")
		close(end)
		eventually(t, func() bool { return inState(t, db, stateDone) == 3 }, "the long task is not done")
		require.NoError(t, tx.Rollback())
		eventually(t, func() bool { return inState(t, db, stateDone) == 4 }, "the task with the key is not done")
		assert.Empty(t, keysOf(t, db))
		assert.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT MAX(attempts) FROM mqnotify_task"))
		require.NoError(t, w.end(t))
		assert.Equal(t, map[string]int{"done": 4}, w.outcomes())
	})
}
