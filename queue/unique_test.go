package queue

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A key is free when its task is no more, however that came, and whatever the transaction that
// wants it saw before.
func TestUniqueOfNobody(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		config.ClientFoundRows = true
		q := newQueue(t, openConfig(t, config), Options{NoGate: true})
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
		assert.Equal(t, 3, inState(t, db, Ready))
		for _, end := range []string{
			"UPDATE mqnotify_task SET state = 'done'", "UPDATE mqnotify_task SET state = 'dead'",
			"DELETE FROM mqnotify_task", "TRUNCATE mqnotify_task",
		} {
			require.Zero(t, enter(), end)
			execute(t, db, end)
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

// Who was dead has its key again, unless another has got it meanwhile.
func TestUniqueOfTheDead(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{NoGate: true})
		ids, err := q.Enqueue(t.Context(), Entry{Unique: "kept"}, Entry{Unique: "taken"})
		require.NoError(t, err)
		n, err := q.Cancel(t.Context(), Filter{IDs: ids})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		others, err := q.Enqueue(t.Context(), Entry{Unique: "taken"})
		require.NoError(t, err)
		require.NotZero(t, others[0])
		_, err = q.Retry(t.Context(), Filter{IDs: ids}, 0)
		require.NoError(t, err)
		again, err := q.Enqueue(t.Context(), Entry{Unique: "kept"}, Entry{Unique: "taken"})
		require.NoError(t, err)
		assert.Equal(t, []uint64{0, 0}, again)
		_, err = q.Cancel(t.Context(), Filter{IDs: others})
		require.NoError(t, err)
		again, err = q.Enqueue(t.Context(), Entry{Unique: "kept"}, Entry{Unique: "taken"})
		require.NoError(t, err)
		assert.Zero(t, again[0])
		assert.NotZero(t, again[1], "its holder is dead; the other is without it")
	})
}

// The keys of tasks that are done or deleted take no room.
func TestUniqueKeysAreDeleted(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode ClaimMode) {
		for _, discard := range []bool{false, true} {
			db, _ := database(t, s)
			q := newQueue(t, db, Options{})
			keys := func() []string {
				var keys []string
				require.NoError(t, db.Pool().Select(&keys, "SELECT unique_key FROM mqnotify_task_key ORDER BY unique_key"))
				return keys
			}
			_, err := q.Enqueue(t.Context(), Entry{Unique: "done"}, Entry{Unique: "dead", Retries: NoRetries}, Entry{Unique: "done, too"}, Entry{})
			require.NoError(t, err)
			require.Equal(t, []string{"dead", "done", "done, too"}, keys())
			w := work(t, q, WorkerOptions{Claim: mode, Discard: discard}, func(_ context.Context, task Task) error {
				if task.Unique == "dead" {
					return ErrDead
				}
				return nil
			})
			eventually(t, func() bool { return len(keys()) == 1 }, "the keys stay")
			assert.Equal(t, []string{"dead"}, keys())
			require.NoError(t, w.end(t))
			_, err = q.Prune(t.Context(), PruneOptions{})
			require.NoError(t, err)
			assert.Equal(t, []string{"dead"}, keys())
			_, err = q.Prune(t.Context(), PruneOptions{Dead: true})
			require.NoError(t, err)
			assert.Empty(t, keys())
		}
	})
}

// A claim that was lost does not free the key of the task, which another works on.
func TestUniqueOfALateOutcome(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{NoGate: true})
		_, err := q.Enqueue(t.Context(), Entry{Unique: "key"})
		require.NoError(t, err)
		late, other := newLine(t, db, true), newLine(t, db, true)
		old, _, err := late.round(t.Context(), nil, 1)
		require.NoError(t, err)
		require.Len(t, old, 1)
		execute(t, db, "UPDATE mqnotify_task SET state_at = '2000-01-01 00:00:00'")
		_, err = other.promote(t.Context())
		require.NoError(t, err)
		now, _, err := other.round(t.Context(), nil, 1)
		require.NoError(t, err)
		for i, l := range []*line{late, other} {
			outcome := []outcome{{held: &held{task: [][]Task{old, now}[i][0]}}}
			_, _, err = l.round(t.Context(), outcome, 0)
			require.NoError(t, err)
			require.NoError(t, l.freeKeys(t.Context(), outcome))
			keys := value[int](t, db, "SELECT COUNT(*) FROM mqnotify_task_key")
			assert.Equal(t, 1-i, keys)
		}
	})
}
