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

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Where there is no gate a worker polls, and finds what is to be done now, what falls due later,
// what another worker has failed at, and recurring tasks: none of it by its own look.
func TestWithoutGate(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db, config := database(t, own)
		_, err := own.Admin(t).ExecContext(t.Context(), "SET GLOBAL read_only = 1") // root may write
		require.NoError(t, err)
		q := newQueue(t, db, Options{})
		var logged mysqltest.Text
		var fails atomic.Bool
		var got collected
		fails.Store(true)
		// Of two workers either may have a task. Who fails at "again" stops.
		workers := make(chan *running, 2)
		polling := func() *running {
			mine := newQueue(t, openConfig(t, config), Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))})
			var w *running
			ready := make(chan struct{})
			options := WorkerOptions{
				Look: time.Hour, Poll: &notify.Fibonacci{Max: 100 * time.Millisecond},
				Backoff: func(int) time.Duration { return time.Second },
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
		// What was done before is no news any more, nor the state at the beginning.
		settle := func() { <-time.After(busyLook + busyLook/2) }
		settle()
		enqueue(t, q, "now")
		got.waitFor(t, "now")
		settle()
		_, err = q.Enqueue(t.Context(), Entry{Payload: []byte("later"), Delay: time.Second})
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
