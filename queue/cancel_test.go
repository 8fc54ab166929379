package queue

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A worker recognizes its tasks in every sql_mode, also if its name has characters that LIKE takes for a pattern.
func TestCancelInAnyMode(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		config = config.Clone()
		config.Params = map[string]string{"sql_mode": "'NO_BACKSLASH_ESCAPES'"}
		begun, ended := make(chan struct{}), make(chan error, 1)
		work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{Claim: mode, Owner: "host_1", Visibility: time.Hour},
			func(ctx context.Context, _ Task) error {
				close(begun)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil
			})
		q := newQueue(t, db, Options{})
		ids, err := q.Enqueue(t.Context(), Entry{})
		require.NoError(t, err)
		mysqltest.Await(t, begun, "the handler")
		n, err := q.Cancel(t.Context(), Filter{IDs: ids})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.ErrorIs(t, mysqltest.Receive(t, ended), ErrClaimLost)
	})
}

// A cancelled task has at most one handler: neither its retry nor a task with its unique key begins before the cancelled
// handler has returned. The worker ends the handler at once, and not at the next renewal, which is minutes away here.
func TestCancelHoldsTask(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		for name, retry := range map[string]bool{"retry": true, "unique key": false} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s)
				install(t, db)
				q := newQueue(t, db, Options{})
				begun, ended, release := make(chan struct{}), make(chan error, 1), make(chan struct{})
				releases := sync.OnceFunc(func() { close(release) })
				first := work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{Claim: mode, Visibility: time.Hour},
					func(ctx context.Context, task Task) error {
						if task.Attempt > 1 || string(task.Payload) != "task" {
							return nil
						}
						close(begun)
						<-ctx.Done()
						ended <- context.Cause(ctx)
						<-release
						return finishAlone(context.WithoutCancel(ctx), db, task)
					})
				t.Cleanup(releases)
				ids, err := q.Enqueue(t.Context(), Entry{Payload: []byte("task"), Unique: "key"})
				require.NoError(t, err)
				mysqltest.Await(t, begun, "the handler")
				var got collected
				idleWorker(t, db, config, WorkerOptions{Claim: mode}, got.handle)

				n, err := q.Cancel(t.Context(), Filter{IDs: ids})
				require.NoError(t, err)
				require.Equal(t, 1, n)
				require.ErrorIs(t, mysqltest.Receive(t, ended), ErrClaimLost)
				first.stop() // it claims nothing more
				if retry {
					n, err = q.Retry(t.Context(), Filter{IDs: ids}, 3)
					require.NoError(t, err)
					require.Equal(t, 1, n)
				}
				again, err := q.Enqueue(t.Context(), Entry{Payload: []byte("same key"), Unique: "key"})
				require.NoError(t, err)
				require.Equal(t, []uint64{0}, again, "the handler still runs")
				enqueue(t, q, "other")
				got.waitFor(t, "other")
				all, err := q.List(t.Context(), Filter{IDs: ids})
				require.NoError(t, err)
				require.Equal(t, stateInProgress, all[0].State)

				releases()
				require.NoError(t, first.wait(t))
				if retry {
					got.waitFor(t, "other", "task")
					assert.Equal(t, 2, got.tasks()[1].Attempt)
					assert.Equal(t, 3, got.tasks()[1].Retries)
					assert.Equal(t, "key", got.tasks()[1].Unique)
					return
				}
				all, err = q.List(t.Context(), Filter{IDs: ids})
				require.NoError(t, err)
				assert.Equal(t, stateDead, all[0].State)
				assert.Equal(t, "cancelled", all[0].LastError)
				again, err = q.Enqueue(t.Context(), Entry{Payload: []byte("same key"), Unique: "key"})
				require.NoError(t, err)
				require.NotZero(t, again[0])
				got.waitFor(t, "other", "same key")
			})
		}
	})
}

// A cancelled task is dead, even if its handler ends before the worker learns of the cancellation, and if claimed
// tasks wait for a handler.
func TestCancelMeetsEnd(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		var entries []Entry
		for range 60 {
			entries = append(entries, Entry{})
		}
		var handled atomic.Int64
		ids, err := q.Enqueue(t.Context(), entries...)
		require.NoError(t, err)
		w := work(t, q, WorkerOptions{Claim: mode, Batch: 3, Visibility: time.Hour}, func(_ context.Context, task Task) error {
			handled.Add(1)
			next := ids[min(len(ids)-1, int(task.ID-ids[0])+1)]
			return second(q.Cancel(context.WithoutCancel(t.Context()), Filter{IDs: []uint64{task.ID, next}, States: []string{stateReady, stateInProgress}}))
		})
		eventually(t, func() bool { return inState(t, db, stateDead) == len(ids) }, "not all are dead")
		assert.Less(t, handled.Load(), int64(len(ids)), "those that waited for the handler are not handled")
		require.NoError(t, w.end(t))
		assert.Zero(t, w.of("lost"))
	})
}

// If a worker has vanished, its claim on a cancelled task lapses: then the task is dead, or ready after a Retry.
func TestCancelledClaimLapses(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		ids, err := q.Enqueue(t.Context(), Entry{Payload: []byte("dead"), Unique: "key"}, Entry{Payload: []byte("ready"), Unique: "other key"})
		require.NoError(t, err)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'in progress', claim_order = 0, attempts = 1,"+
			" state_at = UTC_TIMESTAMP(6) + INTERVAL 3 SECOND")
		n, err := q.Cancel(t.Context(), Filter{IDs: ids})
		require.NoError(t, err)
		require.Equal(t, 2, n)
		n, err = q.Retry(t.Context(), Filter{IDs: ids[1:]}, 0)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, []string{"key", "other key"}, keysOf(t, db))
		var got collected
		idleWorker(t, db, config, WorkerOptions{PollInterval: time.Hour}, got.handle)
		got.waitFor(t, "ready")
		eventually(t, func() bool { return inState(t, db, stateDead) == 1 && inState(t, db, stateDone) == 1 }, "the cancelled task is not dead")
		assert.Empty(t, keysOf(t, db))
	})
}
