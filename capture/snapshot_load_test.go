package capture

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// While programs write, snapshots are made, and most are stopped and continued. The messages from the first id of any snapshot on
// reproduce the table.
func TestSnapshotUnderLoad(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		manyParts(t, db, 300)
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		began := time.Now()
		total := int64(mysqltest.Many(500, 1_500, 30_000))
		wait := writeParts(t, db, total)
		var done atomic.Bool
		snapshots := snapshotsUntil(t, db, done.Load)
		wait()
		done.Store(true)
		whole := mysqltest.Receive(t, snapshots)
		messages := mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM parts_changes")
		t.Logf("%d writes, %d messages, %d snapshots, %v", total, messages, len(whole), time.Since(began).Round(time.Millisecond))
		want := contents(t, db)
		assert.Equal(t, want, replayed(t, db, 0))
		for _, p := range whole[max(0, len(whole)-3):] {
			assert.Equal(t, want, replayed(t, db, p.From), "from %d on", p.From)
		}
	})
}

// writeParts starts four programs that together make that many changes of the table parts, and returns a function that waits for their
// end. Some changes are of many rows, of the key, or in a transaction with others, and some are rolled back.
func writeParts(t *testing.T, db *notify.DB, total int64) (wait func()) {
	var done, serial atomic.Int64
	serial.Store(1000)
	var writers sync.WaitGroup
	failed := make(chan error, 4)
	ctx := t.Context()
	for w := range 4 {
		writers.Go(func() {
			random := mysqltest.RandomOf(fmt.Sprint(t.Name(), w))
			for n := done.Add(1); n <= total; n = done.Add(1) {
				statements := []string{"START TRANSACTION"}
				for i := range 1 + random.IntN(3) {
					next := serial.Load()
					if random.IntN(8) == 0 {
						next = serial.Add(1)
					}
					statements = append(statements, fmt.Sprintf([]string{
						"INSERT INTO parts (id, name, n) VALUES (%[1]d, 'new %[2]d', %[2]d) ON DUPLICATE KEY UPDATE n = %[2]d",
						"INSERT IGNORE INTO parts (id, name, n) VALUES (%[3]d, 'last %[2]d', %[2]d)",
						"UPDATE parts SET name = 'w %[2]d' WHERE id = %[1]d",
						"UPDATE parts SET n = %[2]d WHERE id BETWEEN %[1]d AND %[1]d + 20",
						"UPDATE parts SET id = %[2]d + 1000000 WHERE id = %[1]d", // once each: no other row has that key
						"DELETE FROM parts WHERE id = %[1]d",
					}[random.IntN(6)], random.IntN(300), 3*n+int64(i), next))
				}
				statements = append(statements, []string{"COMMIT", "COMMIT", "ROLLBACK"}[random.IntN(3)])
				if err := transact(ctx, db, statements); err != nil {
					failed <- err
					return
				}
			}
		})
	}
	return func() {
		writers.Wait()
		select {
		case err := <-failed:
			t.Error(err)
		default:
		}
	}
}

func transact(ctx context.Context, db *notify.DB, statements []string) error {
	conn, err := db.Pool().Connx(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return server.Again(ctx, server.Retryable, func() error {
		for _, statement := range statements {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				_, rollback := conn.ExecContext(ctx, "ROLLBACK")
				return errors.Join(fmt.Errorf("%s: %w", statement, err), rollback)
			}
		}
		return nil
	})
}

// A snapshot never causes a writer's deadlock or lock timeout, because it does not wait for a row while it holds locks on others. The
// writer changes rows in the opposite order.
func TestSnapshotMakesNoDeadlock(t *testing.T) {
	mysqltest.NotShort(t, "TestSnapshotUnderLoad")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := withState(t, s)
		manyParts(t, db, 500)
		// Many pages have many locks, and servers end the transaction that has fewer.
		mysqltest.ExecAll(t, db.Pool(), "ALTER TABLE parts ADD note VARCHAR(2000)", "UPDATE parts SET note = REPEAT('x', 2000)")
		_, err := Install(t.Context(), db, "parts", Options{})
		require.NoError(t, err)
		conn, err := db.Pool().Connx(t.Context())
		require.NoError(t, err)
		defer conn.Close()
		var enough atomic.Bool
		var rounds atomic.Int64
		ended := mysqltest.Result(func() error {
			for !enough.Load() {
				for _, statement := range []string{
					"START TRANSACTION", "UPDATE parts SET n = n + 1 WHERE id = 450", "UPDATE parts SET n = n + 1 WHERE id = 250", "COMMIT",
				} {
					if _, err := conn.ExecContext(t.Context(), statement); err != nil {
						return fmt.Errorf("%s: %w", statement, err)
					}
				}
				rounds.Add(1)
			}
			return nil
		})
		for range mysqltest.Many(2, 4, 500) {
			takeSnapshot(t, db, "parts", SnapshotOptions{})
		}
		enough.Store(true)
		require.NoError(t, mysqltest.Receive(t, ended))
		t.Logf("%d transactions", rounds.Load())
		assert.Equal(t, contents(t, db), replayed(t, db, 0))
	})
}
