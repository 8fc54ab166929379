package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// waiting is a worker in a process of its own that waits in the queue's gate, and looks by
// itself once an hour: it finds what it is told of, and nothing else.
func waiting(tb testing.TB, config *mysql.Config, options WorkerOptions, handler Handler) *running {
	tb.Helper()
	var logged mysqltest.Text
	q := newQueue(tb, openConfig(tb, config), Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	options.Look = time.Hour
	w := work(tb, q, options, handler)
	eventually(tb, func() bool { return strings.Contains(logged.String(), "mode=gate") }, "it does not wait in the gate")
	<-time.After(busyLook + busyLook/2) // before that it may look by itself once more
	return w
}

// aged makes the queue one whose first tasks were entered long ago.
func aged(q *Queue) *Queue {
	q.first.Store(time.Now().Add(-time.Minute).UnixNano())
	return q
}

// A task that is entered right before Close is found at once, whether the Queue had joined the
// gate, was about to, or had not lived long enough to.
func TestEnqueueAndClose(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		_, config := database(t, s)
		var got collected
		waiting(t, config, WorkerOptions{}, got.handle)
		var all []string
		for name, prepare := range map[string]func(q *Queue){
			"short-lived": func(*Queue) {},
			"joins":       func(q *Queue) { aged(q) },
			"has joined":  func(q *Queue) { require.NoError(t, q.Join(t.Context())) },
		} {
			q := newQueue(t, openConfig(t, config), Options{})
			prepare(q)
			enqueue(t, q, name)
			require.NoError(t, q.Close())
			all = append(all, name)
			got.waitFor(t, all...)
		}
	})
}

// What is entered is told though the caller's context ends right after the commit.
func TestNotifyAfterTheEnd(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		var got collected
		waiting(t, config, WorkerOptions{}, got.handle)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) VALUES ('mail', 'x')")
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		newQueue(t, db, Options{}).Notify(ended)
		got.waitFor(t, "x")
	})
}

// A reader's gate is rung for what is appended right before Close.
func TestAppendAndClose(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		_, config := ringOf(t, s, 10)
		gate := openRing(t, openConfig(t, config)).gate
		head, err := gate.Head(t.Context())
		require.NoError(t, err)
		for _, prepare := range []func(r *Ring){
			func(*Ring) {},
			func(r *Ring) { r.started = time.Now().Add(-time.Minute) },
			func(r *Ring) { require.NoError(t, r.gate.Join(t.Context())) },
		} {
			writer := openRing(t, openConfig(t, config))
			prepare(writer)
			for settled := false; !settled; { // until nothing wakes it any more
				next, err := gate.Wait(t.Context(), head, 200*time.Millisecond)
				require.NoError(t, err)
				settled, head = next == head, next
			}
			appendText(t, writer, "x")
			require.NoError(t, writer.Close())
			next, err := gate.Wait(t.Context(), head, patience)
			require.NoError(t, err)
			require.NotEqual(t, head, next, "not woken")
		}
	})
}

// A worker that stops tells the others of what it leaves to them: what it had claimed and not
// begun, while its handler goes on; what has failed and falls due later; in an ordered queue the
// next task.
func TestStopTells(t *testing.T) {
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
				db, config := database(t, s, Settings{Ordered: c.ordered})
				begun, end := make(chan struct{}), make(chan struct{})
				enqueue(t, newQueue(t, db, Options{NoGate: true}), "1", "2", "3")
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
				waiting(t, config, WorkerOptions{}, got.handle)
				w.stop()
				got.waitFor(t, c.stop...)
				ends()
				require.NoError(t, w.wait(t))
				got.waitFor(t, c.ends...)
			})
		}
	})
}

// It tells them, too, when its connection ends in that moment.
func TestStopTellsAfterALoss(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{NoGate: true})
		require.NoError(t, q.flag().Set(t.Context(), db.Pool()))
		// It keeps the gate: another keeper's end would wake it. It has a task in hand until the other worker has the rest.
		var got collected
		free := make(chan struct{})
		frees := sync.OnceFunc(func() { close(free) })
		enqueue(t, q, "0")
		waiting(t, config, WorkerOptions{}, func(ctx context.Context, task Task) error {
			if string(task.Payload) != "0" {
				return got.handle(ctx, task)
			}
			select {
			case <-free:
			case <-ctx.Done():
			}
			return nil
		})
		t.Cleanup(frees)
		eventually(t, func() bool { return inState(t, db, InProgress) == 1 }, "it has no task")
		enqueue(t, q, "1", "2", "3")
		begun, end := make(chan struct{}), make(chan struct{})
		w := work(t, newQueue(t, openConfig(t, config), Options{}), WorkerOptions{Batch: 3, Visibility: time.Hour, StopTimeout: patience},
			func(context.Context, Task) error {
				close(begun)
				<-end
				return nil
			})
		ends := sync.OnceFunc(func() { close(end) })
		t.Cleanup(ends)
		mysqltest.Await(t, begun, "the first task")
		frees()
		eventually(t, func() bool { return inState(t, db, Done) == 1 }, "it is not idle")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "SELECT * FROM mqnotify_flag FOR UPDATE")
		require.NoError(t, err)
		w.stop()
		var setting []uint64
		eventually(t, func() bool {
			require.NoError(t, db.Pool().Select(&setting, "SELECT ID FROM information_schema.PROCESSLIST"+
				" WHERE DB = DATABASE() AND INFO LIKE 'INSERT INTO mqnotify_flag%'"))
			return len(setting) == 1
		}, "it does not set the flag")
		mysqltest.Exec(t, db.Pool(), fmt.Sprintf("KILL %d", setting[0]))
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = ?", setting[0]) == 0
		}, "it was not killed")
		require.NoError(t, tx.Rollback())
		got.waitFor(t, "2", "3")
		ends()
		require.NoError(t, w.wait(t))
	})
}

// An ordered queue goes on when its head dies without an outcome: by a lapse, or cancelled.
func TestOrderedHeadDies(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, c := range map[string]struct {
			lapse int // seconds until the head's claim lapses
			die   func(q *Queue, head uint64) error
		}{
			"lapse":  {mysqltest.Size(4, 8, 8), func(*Queue, uint64) error { return nil }},
			"cancel": {3600, func(q *Queue, head uint64) error { return second(q.Cancel(t.Context(), Filter{IDs: []uint64{head}})) }},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s, Settings{Ordered: true})
				q := newQueue(t, db, Options{})
				head := enqueue(t, q, "head", "next")[0]
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'in progress', turn = 0, attempts = 1, retries = 0,"+
					" state_at = UTC_TIMESTAMP(6) + INTERVAL ? SECOND WHERE id = ?", c.lapse, head)
				var got collected
				waiting(t, config, WorkerOptions{}, func(ctx context.Context, task Task) error {
					var state State
					if err := db.Pool().GetContext(ctx, &state, "SELECT state FROM mqnotify_task WHERE id = ?", head); err != nil {
						return err
					}
					assert.Equal(t, Dead, state, "not its turn")
					return got.handle(ctx, task)
				})
				require.NoError(t, c.die(q, head))
				got.waitFor(t, "next")
			})
		}
	})
}

// A task of the far future is due then: no idle worker takes it for overdue, and looks all the time. One of
// the far past is overdue.
func TestFarFuture(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q, l := newQueue(t, db, Options{NoGate: true}), newLine(t, db, true)
		due := func(at time.Time) time.Duration {
			_, err := q.Enqueue(t.Context(), Entry{At: at})
			require.NoError(t, err)
			v, err := l.look(t.Context())
			require.NoError(t, err)
			require.True(t, v.any)
			return v.due
		}
		require.Equal(t, maxDelay, due(time.Date(8999, 12, 31, 0, 0, 0, 0, time.UTC)))
		require.Less(t, due(time.Now().Add(time.Hour)), 26*time.Hour, "the first counts, in any time zone")
		require.Equal(t, -maxDelay, due(time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)))
	})
}
