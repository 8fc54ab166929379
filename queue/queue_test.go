package queue

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A queue is created once, and all callers agree on its settings.
func TestCreate(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		for range 2 {
			require.NoError(t, Create(t.Context(), db, "mail", Options{}))
			require.NoError(t, Create(t.Context(), db, "MAIL", Options{Ordered: true}), "names differ by case")
			require.NoError(t, Create(t.Context(), db, "a `b` 'c' 😀", Options{}))
		}
		require.ErrorIs(t, Create(t.Context(), db, "mail", Options{Ordered: true}), notify.ErrOptions)
		for _, name := range []string{"", strings.Repeat("x", 65), "nul\x00", "end ", " begin", "\xff"} {
			require.ErrorIs(t, Create(t.Context(), db, name, Options{}), notify.ErrOptions, "%q", name)
			_, err := New(db, name, Options{})
			require.ErrorIs(t, err, notify.ErrOptions, "%q", name)
		}
	})
}

// All entries of an Enqueue are stored, or none, whether it sends one statement or many.
func TestEnqueue(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids, err := q.Enqueue(t.Context())
		require.NoError(t, err)
		require.Empty(t, ids)
		mysqltest.Exec(t, db.Pool(), "SET SESSION auto_increment_increment = 3")
		entries := make([]Entry, 2500)
		for i := range entries {
			entries[i] = Entry{Payload: fmt.Appendf(nil, "%d", i), Priority: i % 3}
		}
		entries[7].Payload = make([]byte, 2<<20) // a statement of its own
		ids, err = q.Enqueue(t.Context(), entries...)
		require.NoError(t, err)
		require.Len(t, ids, len(entries))
		for _, i := range []int{0, 6, 8, 999, 1000, 1001, 2499} {
			assert.Equal(t, fmt.Sprintf("%d %d %d", i, i%3, i%3), mysqltest.Value[string](t, db.Pool(),
				"SELECT CONCAT_WS(' ', payload, priority, claim_order) FROM mqnotify_task WHERE id = ?", ids[i]))
		}

		before := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task")
		for _, bad := range []Entry{
			{Priority: 40_000}, {Priority: -40_000}, {Retries: -2}, {Delay: -1}, {Delay: 1, At: time.Unix(0, 0)}, {At: time.Unix(-1e11, 0)},
			{Delay: maxDelay + 1}, {Unique: "a\x00"}, {Unique: strings.Repeat("x", 256)},
		} {
			_, err := q.Enqueue(t.Context(), Entry{}, bad)
			require.ErrorIs(t, err, notify.ErrOptions, "%+v", bad)
			require.ErrorContains(t, err, "task 2 of 2")
		}
		assert.Equal(t, before, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"))
	})
}

// A key is queued once while its task is neither done nor dead, however many callers try.
func TestUnique(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		config.ClientFoundRows = true // which counts rows that are found, not changed
		q := newQueue(t, openConfig(t, config), Options{})
		var all sync.WaitGroup
		var mu sync.Mutex
		entered := 0
		many := mysqltest.Many(24, 64, 64) // of which most would meet a deadlock if the key came before its neighbours
		for range many {
			all.Go(func() {
				ids, err := q.Enqueue(t.Context(), Entry{Payload: []byte("a")}, Entry{Unique: "key", Retries: noRetries}, Entry{Payload: []byte("b")})
				if assert.NoError(t, err) && assert.Len(t, ids, 3) && ids[1] != 0 {
					mu.Lock()
					entered++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		assert.Equal(t, 1, entered)
		assert.Equal(t, 2*many+1, inState(t, db, stateReady))

		fail := make(chan error, 1)
		// It polls often, because on a busy machine its waiter may begin later than the test waits.
		w := work(t, q, WorkerOptions{Claim: mode, PollInterval: time.Second}, func(ctx context.Context, task Task) error {
			if task.Unique == "" {
				return nil
			}
			select {
			case err := <-fail:
				return err
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		again := func() uint64 {
			ids, err := q.Enqueue(t.Context(), Entry{Unique: "key", Retries: noRetries})
			require.NoError(t, err)
			return ids[0]
		}
		eventually(t, func() bool { return inState(t, db, stateInProgress) == 1 }, "not in progress")
		assert.Zero(t, again())
		fail <- nil
		eventually(t, func() bool { return again() != 0 }, "done: the key is free")
		fail <- fmt.Errorf("dead")
		eventually(t, func() bool { return inState(t, db, stateDead) == 1 }, "not dead")
		assert.NotZero(t, again())
		fail <- nil
		eventually(t, func() bool { return inState(t, db, stateDone) == 2*many+2 }, "not done")
		require.NoError(t, w.end(t))
	})
}

// A busy worker claims behind its last claim. It finds a task that became ready before that, or has a smaller
// priority number, when it finds too few there, and at its next full scan.
func TestSweep(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2", "3", "4")
		l := newStore(t, db, true)
		claim := func(want ...uint64) {
			t.Helper()
			tasks, _, err := l.round(t.Context(), nil, len(want))
			require.NoError(t, err)
			var got []uint64
			for _, task := range tasks {
				got = append(got, task.ID)
			}
			require.Equal(t, want, got)
		}
		claim(ids[0], ids[1])
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'ready', state_at = DEFAULT WHERE id = ?", ids[0])
		l.scannedAt = time.Now().Add(time.Hour)
		claim(ids[2])
		claim(ids[0], ids[3], ids[4])
		last := enqueue(t, q, "5")
		first, err := q.Enqueue(t.Context(), Entry{Priority: -1})
		require.NoError(t, err)
		l.scannedAt = time.Time{}
		claim(first[0], last[0])
	})
}

// An ordered queue gives out one task at a time, in the order of entry, and the next
// when the one before is settled, however many workers there are.
func TestOrdered(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s, Options{Ordered: true})
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Priority: 1})
		require.ErrorIs(t, err, notify.ErrOptions)
		_, err = q.Enqueue(t.Context(), Entry{Delay: 1})
		require.ErrorIs(t, err, notify.ErrOptions)
		var mu sync.Mutex
		var order []uint64
		busy, most := 0, 0
		for range 3 {
			other := newQueue(t, openConfig(t, config), Options{})
			work(t, other, WorkerOptions{Claim: mode, Concurrency: 3, Backoff: func(int) time.Duration { return 5 * time.Millisecond }},
				func(_ context.Context, task Task) error {
					mu.Lock()
					busy++
					most = max(most, busy)
					mu.Unlock()
					defer func() {
						mu.Lock()
						defer mu.Unlock()
						busy--
					}()
					if task.Attempt == 1 && task.ID%7 == 0 {
						return fmt.Errorf("at first")
					}
					mu.Lock()
					defer mu.Unlock()
					order = append(order, task.ID)
					return nil
				})
		}
		const entering = 4
		pairs := mysqltest.Many(4, 15, 15) // of each
		var writers sync.WaitGroup
		for range entering {
			writers.Go(func() {
				for range pairs {
					_, err := q.Enqueue(t.Context(), Entry{}, Entry{})
					assert.NoError(t, err)
				}
			})
		}
		writers.Wait()
		for done := 0; done < 2*entering*pairs; { // as slow as the machine is
			before := done
			eventually(t, func() bool { done = inState(t, db, stateDone); return done > before }, "not done")
		}
		mu.Lock()
		defer mu.Unlock()
		assert.IsIncreasing(t, order)
		assert.Equal(t, 1, most)
	})
}

// Dead letters can be listed, tried again and pruned; a task can be cancelled, also while its handler runs.
func TestAdministration(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids, err := q.Enqueue(t.Context(), Entry{Payload: []byte("bad"), Retries: noRetries, Unique: "key"}, Entry{Payload: []byte("slow")},
			Entry{Payload: []byte("later"), Delay: time.Hour})
		require.NoError(t, err)
		good := make(chan struct{})
		ended := make(chan error, 1)
		w := work(t, q, WorkerOptions{Claim: mode, Concurrency: 2, Visibility: 15 * time.Second}, func(ctx context.Context, task Task) error {
			if string(task.Payload) == "slow" {
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil
			}
			select {
			case <-good:
				return nil
			default:
				return fmt.Errorf("not yet")
			}
		})
		eventually(t, func() bool { return inState(t, db, stateDead) == 1 && inState(t, db, stateInProgress) == 1 }, "not dead")
		dead, err := q.List(t.Context(), Filter{States: []string{stateDead}})
		require.NoError(t, err)
		require.Len(t, dead, 1)
		assert.Equal(t, ids[0], dead[0].ID)
		assert.Equal(t, "bad", string(dead[0].Payload))
		assert.Equal(t, "not yet", dead[0].LastError)
		assert.Equal(t, w.options.Owner, strings.Split(dead[0].Owner, "/")[0])
		assert.Less(t, dead[0].At.Sub(dead[0].CreatedAt).Abs(), time.Minute)
		counts, err := q.Counts(t.Context())
		require.NoError(t, err)
		assert.Equal(t, map[string]int{stateDead: 1, stateInProgress: 1, stateScheduled: 1}, counts)

		close(good)
		n, err := q.Retry(t.Context(), Filter{IDs: []uint64{}}, 0)
		require.NoError(t, err)
		require.Zero(t, n, "no ids are not all ids")
		n, err = q.Retry(t.Context(), Filter{}, 0)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		eventually(t, func() bool { return inState(t, db, stateDone) == 1 }, "the dead one is not done")

		n, err = q.Cancel(t.Context(), Filter{IDs: []uint64{ids[1], ids[2], 999_999}})
		require.NoError(t, err)
		assert.Equal(t, 2, n)
		require.ErrorIs(t, <-ended, ErrClaimLost)
		require.NoError(t, w.end(t))
		all, err := q.List(t.Context(), Filter{After: ids[1] - 1, States: []string{stateDead}, NoPayload: true})
		require.NoError(t, err)
		require.Len(t, all, 2)
		for _, i := range all {
			assert.Equal(t, stateDead, i.State)
			assert.Equal(t, "cancelled", i.LastError)
		}

		n, err = q.Prune(t.Context(), time.Hour, "done", "dead")
		require.NoError(t, err)
		assert.Zero(t, n)
		n, err = q.Prune(t.Context(), 0)
		require.NoError(t, err)
		assert.Equal(t, 1, n)
		n, err = q.Prune(t.Context(), 0, "done", "dead")
		require.NoError(t, err)
		assert.Equal(t, 2, n)

		for _, bad := range []func() error{
			func() error { _, err := q.Cancel(t.Context(), Filter{}); return err },
			func() error { _, err := q.Cancel(t.Context(), Filter{States: []string{stateDone}}); return err },
			func() error { _, err := q.Retry(t.Context(), Filter{States: []string{stateInProgress}}, 0); return err },
			func() error { _, err := q.Retry(t.Context(), Filter{}, -2); return err },
			func() error { _, err := q.List(t.Context(), Filter{Limit: -1}); return err },
			func() error { _, err := q.List(t.Context(), Filter{States: []string{"x"}}); return err },
			func() error { _, err := q.Prune(t.Context(), -1); return err },
			func() error { _, err := q.Prune(t.Context(), 0, "ready"); return err },
		} {
			require.ErrorIs(t, bad(), notify.ErrOptions)
		}
	})
}

// Pruning works in small transactions and deletes only old tasks.
func TestPrune(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		finished(t, db, 1700)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 2 HOUR WHERE id % 2")
		old := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE id % 2")
		enqueue(t, q, "stays")
		n, err := q.Prune(t.Context(), time.Hour)
		require.NoError(t, err)
		assert.Equal(t, old, n)
		assert.Equal(t, 1700-old+1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"))
	})
}

// A handler that finishes its task in its own transaction does both or neither.
func TestFinishTx(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE effect (id BIGINT PRIMARY KEY) ENGINE=InnoDB")
		q := newQueue(t, db, Options{})
		enqueue(t, q, "a", "b")
		w := work(t, q, WorkerOptions{Claim: mode, Backoff: noWait}, func(ctx context.Context, task Task) error {
			tx, err := db.Pool().BeginTxx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if _, err := tx.ExecContext(ctx, "INSERT INTO effect VALUES (?)", task.ID); err != nil {
				return err
			}
			if task.Attempt == 1 {
				return fmt.Errorf("rolled back")
			}
			if err := FinishTx(ctx, tx, task); err != nil {
				return err
			}
			return tx.Commit()
		})
		eventually(t, func() bool { return inState(t, db, stateDone) == 2 }, "not done")
		require.NoError(t, w.end(t))
		assert.Equal(t, 2, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM effect"))
		assert.Equal(t, map[string]int{"done": 2, "failed": 2}, w.outcomes(), "finished by itself is not late")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		require.ErrorIs(t, FinishTx(t.Context(), tx, Task{ID: 1, Attempt: 1}), ErrClaimLost)
		require.ErrorIs(t, FinishTx(t.Context(), db.Pool(), Task{ID: 1, Attempt: 1}), notify.ErrOptions)
	})
}

// finishAlone is FinishTx in a transaction of its own.
func finishAlone(ctx context.Context, db *notify.DB, task Task) error {
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if err := FinishTx(ctx, tx, task); err != nil {
		return err
	}
	return tx.Commit()
}

// A transaction can finish a task whose claim was renewed after its first read, if it is READ COMMITTED.
// Some servers refuse the default level; the error then names the remedy.
func TestFinishTxAfterARenewal(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		enqueue(t, newQueue(t, db, Options{}), "task")
		l := newStore(t, db, true)
		tasks, _, err := l.round(t.Context(), nil, 1)
		require.NoError(t, err)
		finish := func(isolation sql.IsolationLevel) error {
			tx, err := db.Pool().BeginTxx(t.Context(), &sql.TxOptions{Isolation: isolation})
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			var n int
			require.NoError(t, tx.GetContext(t.Context(), &n, "SELECT COUNT(*) FROM mqnotify_queue"))
			lost, _, _, err := l.renew(t.Context(), tasks)
			require.NoError(t, err)
			require.Empty(t, lost)
			return FinishTx(t.Context(), tx, tasks[0])
		}
		require.NoError(t, finish(sql.LevelReadCommitted))
		err = finish(sql.LevelRepeatableRead)
		if snapshotIsolation(t, s, db) {
			require.True(t, server.Is(err, server.ErrCheckRead), err)
			require.ErrorContains(t, err, "begin the transaction READ COMMITTED")
		} else {
			require.NoError(t, err)
		}
	})
}
