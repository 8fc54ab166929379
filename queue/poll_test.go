package queue

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Without a wake trigger the waiter polls, and a worker finds tasks that are ready, that fall due later, and
// that another worker has failed at, and recurring tasks: none of them by its own poll.
func TestWorkersPoll(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		var logged mysqltest.Text
		var fails atomic.Bool
		var got collected
		fails.Store(true)
		// Either of the two workers may get a task. The one that fails at "again" stops.
		workers := make(chan *running, 2)
		polling := func() *running {
			mine := newQueue(t, openConfig(t, config), Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			var w *running
			ready := make(chan struct{})
			options := WorkerOptions{
				PollInterval: time.Hour, Backoff: func(int) time.Duration { return time.Second },
			}
			w = work(t, mine, options,
				func(ctx context.Context, task Task) error {
					if string(task.Payload) == "again" && fails.CompareAndSwap(true, false) {
						<-ready
						workers <- w
						return errors.New("at first")
					}
					return got.handle(ctx, task)
				})
			close(ready)
			return w
		}
		polling()
		polling()
		eventually(t, func() bool { return strings.Count(logged.String(), "mode=poll") == 2 }, "they do not poll")
		// Earlier changes, and the state at the beginning, are no news any more.
		settle := func() { <-time.After(busyPoll + busyPoll/2) }
		settle()
		enqueue(t, q, "now")
		got.waitFor(t, "now")
		settle()
		_, err := q.Enqueue(t.Context(), Entry{Payload: []byte("later"), Delay: time.Second})
		require.NoError(t, err)
		got.waitFor(t, "now", "later")
		settle()
		enqueue(t, q, "again")
		require.NoError(t, mysqltest.Receive(t, workers).end(t))
		got.waitFor(t, "now", "later", "again")
		settle()
		require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "often", Cron: "@every 1s", Entry: Entry{Payload: []byte("tick")}}))
		eventually(t, func() bool { return len(got.tasks()) > 3 }, "the recurring task does not come")
	})
}

// The polled value changes with every change that concerns an idle worker, however the worker that
// made it ends, and does not change by itself.
func TestPolledChanges(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, session.Close()) }()
		poll := core.NewPoll(session, polled("mail", true), nil)
		defer func() { require.NoError(t, poll.Close()) }()
		head := func() core.Head {
			head, err := poll.Head(t.Context())
			require.NoError(t, err)
			return head
		}
		enter := func(e Entry) func() {
			return func() {
				_, err := q.Enqueue(t.Context(), e)
				require.NoError(t, err)
			}
		}
		do := func(query string) func() { return func() { mysqltest.Exec(t, db.Pool(), query) } }
		schedule := func(cron string) func() {
			return func() { require.NoError(t, q.Schedule(t.Context(), Recurring{Name: "often", Cron: cron})) }
		}
		for i, step := range []struct {
			name string
			make func()
		}{
			{"a task", enter(Entry{})},
			{"one before it", enter(Entry{Priority: -1})},
			{"claimed", do("UPDATE mqnotify_task SET state = 'in progress', claim_order = 0")},
			{"failed", do("UPDATE mqnotify_task SET state = 'failed', state_at = UTC_TIMESTAMP(6) + INTERVAL 1 HOUR WHERE id = 1")},
			{"a later one failed, too, and is due before", do("UPDATE mqnotify_task SET state = 'failed', state_at = UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE WHERE id = 2")},
			{"a delayed task", enter(Entry{Delay: time.Hour})},
			{"one that is due before", enter(Entry{Delay: time.Minute})},
			{"a recurring task", schedule("@yearly")},
			{"one that is due before", schedule("@every 1s")},
			{"claimed again", do("UPDATE mqnotify_task SET state = 'in progress' WHERE id = 1")},
			{"its claim lapses later", do("UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) + INTERVAL 2 HOUR WHERE id = 1")},
			{"done, for the next one of an ordered queue", do("UPDATE mqnotify_task SET state = 'done' WHERE id = 1")},
		} {
			before := head()
			require.Equal(t, before, head(), "it changes by itself")
			step.make()
			require.NotEqual(t, before, head(), "%d: %s", i, step.name)
		}
	})
}
