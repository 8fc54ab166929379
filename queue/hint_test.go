package queue

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// install installs the wake trigger of tasks.
func install(tb testing.TB, db *notify.DB) {
	tb.Helper()
	require.NoError(tb, wake.Install(tb.Context(), db, wake.Options{Logger: slog.New(slog.DiscardHandler)}, schema.TaskTable))
}

// idleWorker is a worker in a process of its own that waits for the wake trigger, and polls by itself once an hour: it
// finds only tasks with a hint.
func idleWorker(tb testing.TB, db *notify.DB, config *mysql.Config, options WorkerOptions, handler handler) *running {
	tb.Helper()
	install(tb, db)
	var logged mysqltest.Text
	q := newQueue(tb, openConfig(tb, config), Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	options.PollInterval = time.Hour
	w := work(tb, q, options, handler)
	eventually(tb, func() bool { return strings.Contains(logged.String(), "mode=trigger") }, "it does not wait for the trigger")
	<-time.After(busyPoll + busyPoll/2) // before that it may poll by itself once more
	return w
}

// Changes without a trigger wake workers by mqnotify_wake: the call is made before Close returns, even if
// the caller's context has ended. With a trigger it is made only for changes at which the trigger does not fire.
func TestCallsOfWake(t *testing.T) {
	each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // no other test moves this server's counter
		for _, trigger := range []bool{false, true} {
			db, _ := database(t, s)
			require.NoError(t, schema.Init(t.Context(), db.Pool(), "other"))
			require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, "other"))
			if trigger {
				install(t, db)
			}
			calls := func() (n int) {
				var name string
				require.NoError(t, db.Pool().QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Com_call_procedure'").Scan(&name, &n))
				return n
			}
			ended, cancel := context.WithCancel(t.Context())
			cancel()
			onQueue := func(change func(q *Queue)) func() {
				return func() {
					q := newQueue(t, db, Options{})
					change(q)
					require.NoError(t, q.Close())
				}
			}
			for _, c := range []struct {
				name   string
				change func()
			}{
				{"enqueue", onQueue(func(q *Queue) { enqueue(t, q, "x") })},
				{"notify", onQueue(func(q *Queue) { q.Notify(ended) })},
				{"cancel", onQueue(func(q *Queue) {
					require.NoError(t, second(q.Cancel(t.Context(), Filter{States: []string{stateReady}})))
				})},
			} {
				before := calls()
				c.change()
				require.Greater(t, calls(), before, c.name) // a Queue finds out about a trigger with its first call
			}
		}
	})
}

// A worker that stops wakes the others for what it leaves to them: tasks that it has claimed and not
// begun, while its handler still runs; failed tasks that fall due later; in an ordered queue the
// next task.
func TestStopWakesOthers(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, c := range map[string]struct {
			ordered    bool
			fails      error
			stop, ends []string // what another worker has after either
		}{
			"not begun": {false, nil, []string{"2", "3"}, []string{"2", "3"}},
			"failed":    {false, errors.New("at first"), []string{"2", "3"}, []string{"2", "3", "1"}},
			"ordered":   {true, nil, nil, []string{"2", "3"}},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s, Options{Ordered: c.ordered})
				begun, end := make(chan struct{}), make(chan struct{})
				enqueue(t, newQueue(t, db, Options{}), "1", "2", "3")
				options := WorkerOptions{
					Batch: 3, Visibility: time.Hour, StopTimeout: patience,
					Backoff: func(int) time.Duration { return 100 * time.Millisecond },
				}
				w := work(t, newQueue(t, openConfig(t, config), Options{}), options, func(context.Context, Task) error {
					close(begun)
					<-end
					return c.fails
				})
				ends := sync.OnceFunc(func() { close(end) })
				t.Cleanup(ends)
				mysqltest.Await(t, begun, "the first task")
				var got collected
				idleWorker(t, db, config, WorkerOptions{}, got.handle)
				stopped := time.Now()
				w.stop()
				got.waitFor(t, c.stop...)
				ends()
				require.NoError(t, w.wait(t))
				got.waitFor(t, c.ends...)
				require.Less(t, time.Since(stopped), 30*time.Second, "by a wake, not by the poll of the waiter every minute")
			})
		}
	})
}

// An ordered queue continues when its head dies without an outcome: by a lapse, or cancelled.
func TestOrderedHeadDies(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, c := range map[string]struct {
			lapse int // seconds until the head's claim lapses
			die   func(q *Queue, head uint64) error
		}{
			"lapse":  {mysqltest.Many(4, 8, 8), func(*Queue, uint64) error { return nil }},
			"cancel": {mysqltest.Many(4, 8, 8), func(q *Queue, head uint64) error { return second(q.Cancel(t.Context(), Filter{IDs: []uint64{head}})) }},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s, Options{Ordered: true})
				q := newQueue(t, db, Options{})
				head := enqueue(t, q, "head", "next")[0]
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'in progress', claim_order = 0, attempts = 1, retries = 0,"+
					" state_at = UTC_TIMESTAMP(6) + INTERVAL ? SECOND WHERE id = ?", c.lapse, head)
				var got collected
				idleWorker(t, db, config, WorkerOptions{}, func(ctx context.Context, task Task) error {
					var state string
					if err := db.Pool().GetContext(ctx, &state, "SELECT state FROM mqnotify_task WHERE id = ?", head); err != nil {
						return err
					}
					assert.Equal(t, stateDead, state, "not in its order")
					return got.handle(ctx, task)
				})
				require.NoError(t, c.die(q, head))
				got.waitFor(t, "next")
			})
		}
	})
}

// A task of the far future is due then: no idle worker takes it as overdue and polls all the time. One of
// the far past is overdue.
func TestFarFuture(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q, l := newQueue(t, db, Options{}), newStore(t, db, true)
		due := func(at time.Time) time.Duration {
			_, err := q.Enqueue(t.Context(), Entry{At: at})
			require.NoError(t, err)
			v, err := l.poll(t.Context())
			require.NoError(t, err)
			require.True(t, v.any)
			return v.due
		}
		require.Equal(t, maxDelay, due(time.Date(8999, 12, 31, 0, 0, 0, 0, time.UTC)))
		require.Less(t, due(time.Now().Add(time.Hour)), 26*time.Hour, "the first counts, in any time zone")
		require.Equal(t, -maxDelay, due(time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)))
	})
}

// A task that was claimed, died, and is ready again wakes an idle worker, even if it was also the first ready task before.
func TestRetryWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		begun, release := make(chan uint64, 10), make(chan struct{})
		idleWorker(t, db, config, WorkerOptions{PollInterval: time.Hour}, func(_ context.Context, task Task) error {
			begun <- task.ID
			if string(task.Payload) == "busy" {
				<-release
				return nil
			}
			return notify.ErrDead
		})
		q := newQueue(t, db, Options{})
		enqueue(t, q, "busy")
		mysqltest.Receive(t, begun)
		ids := enqueue(t, q, "again")
		<-time.After(300 * time.Millisecond) // the process has seen it ready
		close(release)
		require.Equal(t, ids[0], mysqltest.Receive(t, begun))
		mysqltest.Eventually(t, "the task is dead", func() bool {
			n, err := q.Retry(t.Context(), Filter{States: []string{stateDead}}, 0)
			require.NoError(t, err)
			return n == 1
		})
		require.Equal(t, ids[0], mysqltest.Receive(t, begun))
	})
}
