package queue

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// connections returns the number of connections of the test's database, without its own. db has only one connection.
func connections(tb testing.TB, db *notify.DB) int {
	return mysqltest.Value[int](tb, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()")
}

// An idle worker has two connections, which its process waits on. It keeps none of its own, and none of the pool. It still
// learns of every task: of a new one, of one that becomes due, and of one whose worker vanished after it had
// claimed the task without a hint. It stops at once.
func TestIdleConnections(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		db.Pool().SetMaxOpenConns(1)
		var got collected
		w := idleWorker(t, db, config, WorkerOptions{}, got.handle)
		q := newQueue(t, db, Options{})
		rests := func() {
			t.Helper()
			mysqltest.Eventually(t, "two connections are left", func() bool { return connections(t, db) == 2 })
		}
		enqueue(t, q, "entered")
		got.waitFor(t, "entered")
		rests()
		enqueue(t, q, "entered later")
		got.waitFor(t, "entered", "entered later")
		rests()
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, state, state_at, attempts, owner, payload)"+
			" VALUES (?, 'in progress', UTC_TIMESTAMP(6) + INTERVAL 7 SECOND, 1, 'gone', 'claimed')", q.name)
		rests()
		got.waitFor(t, "entered", "entered later", "claimed")
		rests()
		_, err := q.Enqueue(t.Context(), Entry{Payload: []byte("due"), Delay: 7 * waiting.Unused / 2})
		require.NoError(t, err)
		rests()
		got.waitFor(t, "entered", "entered later", "claimed", "due")
		rests()
		require.NoError(t, w.end(t))
	})
}
