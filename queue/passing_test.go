package queue

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A server that lacks disk space or memory for a moment does not end a worker: it waits, and continues.
func TestPassingServerErrors(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, number := range []int{1021, 1037, 1038, 1041, 1114, 1180, 1206} {
			t.Run(fmt.Sprint(number), func(t *testing.T) {
				t.Parallel()
				db, _ := database(t, s)
				q := newQueue(t, db, Options{})
				tries, stop := mysqltest.FailWith(t, db.Pool(), "mqnotify_task", number)
				done := make(chan string, 1)
				w := work(t, q, WorkerOptions{}, func(_ context.Context, task Task) error {
					done <- string(task.Payload)
					return nil
				})
				enqueue(t, q, "x")
				mysqltest.Eventually(t, "the worker has tried again", func() bool { return tries() > 1 })
				stop()
				require.Equal(t, "x", mysqltest.Receive(t, done))
				w.stop()
				<-w.done
				require.NoError(t, w.err)
			})
		}
	})
}
