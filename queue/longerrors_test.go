package queue

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Many tasks that fail at the same time with long errors are stored, also on a server that takes packets of 1 MiB.
func TestManyLongErrors(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		const tasks = 200
		db, _ := database(t, shared.Start(t, "--max-allowed-packet=1M"))
		q := newQueue(t, db, Options{})
		enqueue(t, q, make([]string, tasks)...)
		var begun atomic.Int32
		all := make(chan struct{})
		w := work(t, q, WorkerOptions{Concurrency: tasks, Batch: tasks}, func(context.Context, Task) error {
			if begun.Add(1) == tasks {
				close(all)
			}
			mysqltest.Await(t, all, "all handlers")
			return errors.New(strings.Repeat("'", 8<<10))
		})
		eventually(t, func() bool { return begun.Load() >= tasks && inState(t, db, stateFailed) == tasks }, "not stored")
		require.NoError(t, w.end(t))
	})
}
