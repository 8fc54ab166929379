package queue

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A process with workers of two queues does the tasks of one as they come, while the other queue has a backlog: they do not
// wait until the backlog is done.
func TestBacklogOfAnotherQueue(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		install(t, db)
		require.NoError(t, Create(t.Context(), db, "bulk", Options{}))
		small := newQueue(t, db, Options{})
		bulk, err := New(db, "bulk", Options{Logger: testLogger(t)})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, bulk.Close()) })
		handled := make(chan string, 1)
		work(t, small, WorkerOptions{}, func(_ context.Context, task Task) error {
			handled <- string(task.Payload)
			return nil
		})
		enqueue(t, small, "first")
		require.Equal(t, "first", <-handled)

		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"+
			" SELECT 'bulk', 'x' FROM n a, (SELECT 1 FROM n LIMIT ?) b", mysqltest.Many(30, 60, 300))
		w := work(t, bulk, WorkerOptions{Concurrency: 4, Batch: 100}, func(context.Context, Task) error { return nil })
		eventually(t, func() bool { return w.of("done") > 0 }, "the backlog is not worked on")
		for range 20 {
			enqueue(t, small, "small")
			require.Equal(t, "small", <-handled)
		}
		left := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE queue = 'bulk' AND state = 'ready'")
		require.Positive(t, left, "the small queue's tasks waited for the backlog's end")
		require.NoError(t, w.end(t))
	})
}
