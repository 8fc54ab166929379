package waiting_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// A topic whose table is locked delays the other topics of the process by at most one lock_wait_timeout, and is
// read again when the lock is gone.
func TestLockedTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		for _, table := range []string{"locked", "free"} {
			makeTopic(t, db, config, table, true)
		}
		w := waiting.New(config, mysqltest.Logger(t, slog.LevelInfo))
		locked, free := w.Listen(topicOf("locked")), w.Listen(topicOf("free"))
		defer func() {
			require.NoError(t, locked.Close())
			require.NoError(t, free.Close())
		}()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		headOfLocked, err := locked.Head(ctx)
		require.NoError(t, err)
		head, err := free.Head(ctx)
		require.NoError(t, err)
		sleeps(t, free)

		conn, err := db.Conn(ctx)
		require.NoError(t, err)
		defer conn.Close()
		_, err = conn.ExecContext(ctx, "LOCK TABLES locked WRITE")
		require.NoError(t, err)
		_, err = conn.ExecContext(ctx, "INSERT INTO locked (payload) VALUES ('x')") // its hint makes the process read
		require.NoError(t, err)
		var slow int
		for range 10 {
			mysqltest.Exec(t, db, "INSERT INTO free (payload) VALUES ('x')")
			committed := time.Now()
			head, err = free.Wait(ctx, head, time.Minute)
			require.NoError(t, err)
			if took := time.Since(committed); took > 900*time.Millisecond { // the lock_wait_timeout is 1 s
				slow++
				t.Log(took)
			}
		}
		// Once, or a few times on a loaded machine.
		require.Less(t, slow, 6, "the locked table was not set aside after the first timeout")
		now, err := locked.Wait(ctx, headOfLocked, 0)
		require.NoError(t, err)
		require.Equal(t, headOfLocked, now, "nobody can read it")
		_, err = conn.ExecContext(ctx, "UNLOCK TABLES")
		require.NoError(t, err)
		now, err = locked.Wait(ctx, headOfLocked, time.Minute)
		require.NoError(t, err)
		require.NotEqual(t, headOfLocked, now)
	})
}
