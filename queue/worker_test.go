package queue

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// noWait is a Backoff without a wait.
func noWait(int) time.Duration { return 0 }

// A task goes through its states, and its handler gets it whole.
func TestWorkerHandles(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		bytes := string([]byte{0, 1, '\'', '\\', 0xff, '\n'})
		ids := enqueue(t, q, bytes, "", "third")
		var got collected
		w := work(t, q, WorkerOptions{Claim: mode}, got.handle)
		got.waitFor(t, bytes, "", "third")
		eventually(t, func() bool { return inState(t, db, stateDone) == 3 }, "not done")
		first := got.tasks()[0]
		assert.Equal(t, ids[0], first.ID)
		assert.Equal(t, "mail", first.Queue)
		assert.Equal(t, 1, first.Attempt)
		assert.Equal(t, defaultRetries, first.Retries)
		assert.Less(t, mysqltest.Value[float64](t, db.Pool(), "SELECT ABS(TIMESTAMPDIFF(MICROSECOND, ?, created_at)) FROM mqnotify_task WHERE id = ?",
			first.CreatedAt.Format(timeLayout), first.ID), float64(time.Hour.Microseconds()*15), "a time zone at most")
		enqueue(t, q, "fourth")
		got.waitFor(t, bytes, "", "third", "fourth")
		require.NoError(t, w.end(t))
		assert.Equal(t, 4, inState(t, db, stateDone), "the last is written down at the end")
		assert.Equal(t, 4, w.of("done"))
	})
}

// A failed task is tried again after its wait, with its error stored, and is dead
// when no retry is left; notify.ErrDead and a panic are failures too.
func TestRetries(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids, err := q.Enqueue(t.Context(), Entry{Payload: []byte("twice"), Retries: 2}, Entry{Payload: []byte("never"), Retries: 1},
			Entry{Payload: []byte("dead")}, Entry{Payload: []byte("panic"), Retries: noRetries})
		require.NoError(t, err)
		var attempts sync.Map
		w := work(t, q, WorkerOptions{Claim: mode, Backoff: func(attempt int) time.Duration { return time.Duration(attempt) * 20 * time.Millisecond }},
			func(_ context.Context, task Task) error {
				n, _ := attempts.LoadOrStore(task.ID, new(atomic.Int32))
				assert.Equal(t, int(n.(*atomic.Int32).Add(1)), task.Attempt)
				switch string(task.Payload) {
				case "dead":
					return fmt.Errorf("no use: %w", notify.ErrDead)
				case "panic":
					panic("at once")
				case "twice":
					if task.Attempt == 3 {
						assert.Zero(t, task.Retries)
						return nil
					}
				}
				return fmt.Errorf("attempt %d: \x00\xff '", task.Attempt)
			})
		eventually(t, func() bool { return inState(t, db, stateDone) == 1 && inState(t, db, stateDead) == 3 }, "not settled")
		require.NoError(t, w.end(t))
		text := func(id uint64) string {
			return mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT_WS(' ', state, attempts, retries, COALESCE(last_error, '-')) FROM mqnotify_task WHERE id = ?", id)
		}
		assert.Equal(t, "done 3 0 -", text(ids[0]))
		assert.Equal(t, "dead 2 0 attempt 2: \x00\uFFFD '", text(ids[1]))
		assert.Equal(t, "dead 1 5 no use: not to be tried again", text(ids[2]))
		assert.Contains(t, text(ids[3]), "dead 1 0 the handler panicked: at once")
		assert.Equal(t, map[string]int{"done": 1, "failed": 3, "dead": 3}, w.outcomes())
	})
}

// A handler that ends its goroutine, and a panic in Backoff or in the error itself, are failures. The worker goes on.
func TestHandlersThatDoNotReturn(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		for _, payload := range []string{"goexit", "goexit", "error"} {
			_, err := q.Enqueue(t.Context(), Entry{Payload: []byte(payload), Retries: noRetries})
			require.NoError(t, err)
		}
		enqueue(t, q, "backoff", "fine")
		w := work(t, q, WorkerOptions{Backoff: func(int) time.Duration { panic("no wait") }}, func(_ context.Context, task Task) error {
			switch string(task.Payload) {
			case "goexit":
				runtime.Goexit()
			case "error":
				var none *notify.TooLargeError
				return none // its Error panics
			case "backoff":
				return errors.New("fails")
			}
			return nil
		})
		eventually(t, func() bool {
			return inState(t, db, stateDead) == 3 && inState(t, db, stateFailed) == 1 && inState(t, db, stateDone) == 1
		}, "not settled")
		require.NoError(t, w.end(t))
		assert.Equal(t, "the handler ended its goroutine,the handler ended its goroutine,the handler panicked: runtime er,the handler panicked: no wait",
			mysqltest.Value[string](t, db.Pool(), "SELECT GROUP_CONCAT(LEFT(SUBSTRING_INDEX(SUBSTRING_INDEX(last_error, ' (', 1), '\n', 1), 32) ORDER BY id) FROM mqnotify_task WHERE last_error IS NOT NULL"))
	})
}

// Tasks are claimed by priority, the smallest number first, and then by id.
func TestPriority(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		for _, p := range []int{3, -2, 0, 3, -2, 7, 0} {
			_, err := q.Enqueue(t.Context(), Entry{Payload: fmt.Appendf(nil, "%d", p), Priority: p})
			require.NoError(t, err)
		}
		var got collected
		work(t, q, WorkerOptions{Claim: mode, Batch: 2}, got.handle)
		got.waitFor(t, "-2", "-2", "0", "0", "3", "3", "7")
		tasks := got.tasks()
		for i := range tasks[1:] {
			assert.True(t, tasks[i].Priority < tasks[i+1].Priority || tasks[i].ID < tasks[i+1].ID)
		}
	})
}

// A task that is due later is claimed then, by a worker that sleeps until that moment.
func TestDelay(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		var got collected
		work(t, q, WorkerOptions{Claim: mode}, got.handle)
		enqueue(t, q, "first")
		got.waitFor(t, "first")
		_, err := q.Enqueue(t.Context(), Entry{Payload: []byte("past"), At: time.Unix(1e9, 0)})
		require.NoError(t, err)
		got.waitFor(t, "first", "past")
		ids, err := q.Enqueue(t.Context(), Entry{Payload: []byte("later"), Delay: 400 * time.Millisecond})
		require.NoError(t, err)
		due := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(state_at AS CHAR) FROM mqnotify_task WHERE id = ?", ids[0])
		got.waitFor(t, "first", "past", "later")
		late := mysqltest.Value[float64](t, db.Pool(), "SELECT TIMESTAMPDIFF(MICROSECOND, ?, UTC_TIMESTAMP(6)) / 1000", due)
		assert.GreaterOrEqual(t, late, 0.0, "not before its time")
		assert.Less(t, late, 15_000.0, "ms: by a timer, not by the poll every 30 s")
	})
}

// A worker that stops lets its handlers finish, and gives back the tasks that are not begun.
func TestStop(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		enqueue(t, q, "1", "2", "3", "4", "5")
		begun, end := make(chan string, 10), make(chan struct{})
		w := work(t, q, WorkerOptions{Claim: mode, Batch: 4, StopTimeout: patience}, func(ctx context.Context, task Task) error {
			begun <- string(task.Payload)
			select {
			case <-end:
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		assert.Equal(t, "1", <-begun)
		assert.Equal(t, 4, inState(t, db, stateInProgress))
		w.stop()
		eventually(t, func() bool { return inState(t, db, stateReady) == 4 }, "not given back")
		close(end)
		require.NoError(t, w.wait(t))
		assert.Equal(t, 1, inState(t, db, stateDone))
		assert.Equal(t, 4*defaultRetries, mysqltest.Value[int](t, db.Pool(), "SELECT SUM(retries) FROM mqnotify_task WHERE state = 'ready'"), "no retry is used")
		var got collected
		work(t, q, WorkerOptions{Claim: mode}, got.handle)
		got.waitFor(t, "2", "3", "4", "5")
	})
}

// A handler's context ends StopTimeout after its worker's; its outcome then is still
// stored.
func TestStopTimeout(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		enqueue(t, q, "hangs")
		begun := make(chan struct{})
		w := work(t, q, WorkerOptions{StopTimeout: 50 * time.Millisecond, Backoff: noWait}, func(ctx context.Context, _ Task) error {
			close(begun)
			<-ctx.Done()
			return context.Cause(ctx)
		})
		<-begun
		require.NoError(t, w.end(t))
		assert.Equal(t, 1, inState(t, db, stateFailed))
		assert.Equal(t, "context canceled", mysqltest.Value[string](t, db.Pool(), "SELECT last_error FROM mqnotify_task"))
	})
}

func TestWorkerRefusals(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		for _, o := range []WorkerOptions{
			{Concurrency: -1}, {Concurrency: 10_001}, {Batch: -1}, {Batch: 10_001}, {Visibility: -time.Second}, {Visibility: time.Millisecond},
			{PollInterval: -1}, {Lapses: -1}, {Lapses: 1}, {Claim: "nonsense"},
		} {
			_, err := newWorker(q, o)
			require.ErrorIs(t, err, notify.ErrOptions, "%+v", o)
		}
		w, err := newWorker(q, WorkerOptions{})
		require.NoError(t, err)
		require.ErrorIs(t, w.run(t.Context(), nil), notify.ErrOptions)

		unknown, err := New(db, "nobody's", Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, unknown.Close()) }()
		w, err = newWorker(unknown, WorkerOptions{})
		require.NoError(t, err)
		handler := func(context.Context, Task) error { return errors.New("never called") }
		err = w.run(t.Context(), handler)
		require.ErrorIs(t, err, ErrNotFound)
		require.ErrorContains(t, err, "mqnotify init --queue")
		_, err = unknown.Enqueue(t.Context(), Entry{})
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, unknown.Close())
		_, err = unknown.Enqueue(t.Context(), Entry{})
		require.ErrorIs(t, err, notify.ErrClosed)
		require.ErrorIs(t, w.run(t.Context(), handler), notify.ErrClosed)

		empty, err := New(openConfig(t, s.Database(t)), "mail", Options{})
		require.NoError(t, err)
		_, err = empty.Enqueue(t.Context(), Entry{})
		require.ErrorIs(t, err, notify.ErrNoState)
		require.NoError(t, empty.Close())

		reader, err := New(openConfig(t, s.User(t, config, "SELECT ON "+config.DBName+".*")), "mail", Options{})
		require.NoError(t, err)
		_, err = reader.Enqueue(t.Context(), Entry{})
		require.ErrorIs(t, err, notify.ErrDenied)
		w, err = newWorker(reader, WorkerOptions{})
		require.NoError(t, err)
		require.ErrorIs(t, w.run(t.Context(), handler), notify.ErrDenied)
		require.NoError(t, reader.Close())
	})
}

// An error of a server that may recover by itself does not end a worker.
func TestPassingErrors(t *testing.T) {
	for number, ends := range map[uint16]bool{
		server.ErrNotPrepared: false, server.ErrHookFailed: false, server.ErrTooManyConnections: false, server.ErrOptionPreventsWrite: false,
		server.ErrNetReadInterrupted: false,
		server.ErrTableAccessDenied:  true, server.ErrNoSuchTable: true,
	} {
		require.Equal(t, ends, permanent(&mysql.MySQLError{Number: number}), number)
	}
}

// The context of a handler that hangs ends after HandlerTimeout, and its task fails. Then other tasks get the handler.
func TestHandlerTimeout(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		_, err := q.Enqueue(t.Context(), Entry{Payload: []byte("hangs"), Retries: noRetries}, Entry{Payload: []byte("next")})
		require.NoError(t, err)
		work(t, q, WorkerOptions{HandlerTimeout: 100 * time.Millisecond}, func(ctx context.Context, task Task) error {
			if string(task.Payload) == "next" {
				return nil
			}
			<-ctx.Done()
			return context.Cause(ctx)
		})
		eventually(t, func() bool { return inState(t, db, stateDone) == 1 }, "the other task is not done")
		require.Equal(t, []string{"the handler took longer than 100ms"},
			mysqltest.Values[string](t, db.Pool(), "SELECT last_error FROM mqnotify_task WHERE state = 'dead'"))
	})
}
