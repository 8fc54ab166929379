package queue

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// An idle worker has a connection of its own, and two for its process's waiting. It keeps none of the pool.
func TestIdleConnections(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		db.Pool().SetMaxOpenConns(1)
		var got collected
		idleWorker(t, db, config, WorkerOptions{}, got.handle)
		enqueue(t, newQueue(t, db, Options{}), "x")
		got.waitFor(t, "x")
		mysqltest.Eventually(t, "three connections are left: one works, two wait", func() bool {
			return len(mysqltest.Values[uint64](t, db.Pool(),
				"SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()")) == 3
		})
		enqueue(t, newQueue(t, db, Options{}), "y") // the third has to come back
		got.waitFor(t, "x", "y")
	})
}
