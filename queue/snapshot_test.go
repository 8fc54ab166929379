package queue

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// BenchmarkOldSnapshot measures the time from a task's commit to the handler of an idle worker, when no task was done before, and
// when many were done while a snapshot is open, so that the server keeps their index entries. The tasks of the last figure each have
// a smaller priority number than the one before. Medians and the worst, in ms.
//
//	go test ./queue -run - -bench OldSnapshot -benchtime 20x
func BenchmarkOldSnapshot(b *testing.B) {
	for _, n := range []int{0, 50_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
				db, config := database(b, s)
				install(b, db)
				quiet := Options{Logger: slog.New(slog.DiscardHandler)}
				q := newQueue(b, db, quiet)
				if n > 0 {
					finishedUnderASnapshot(b, db, n)
				}
				handled := make(chan time.Time, 1)
				work(b, newQueue(b, openConfig(b, config), quiet), WorkerOptions{}, func(context.Context, Task) error {
					handled <- time.Now()
					return nil
				})
				latency := func(e Entry) float64 {
					<-time.After(500 * time.Millisecond) // idle again
					_, err := q.Enqueue(b.Context(), e)
					require.NoError(b, err)
					committed := time.Now()
					return 1e3 * (<-handled).Sub(committed).Seconds()
				}
				latency(Entry{})
				var latencies, before []float64
				for b.Loop() {
					latencies = append(latencies, latency(Entry{}))
				}
				for i := range latencies {
					before = append(before, latency(Entry{Priority: -1 - i}))
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(latencies), "ms")
				b.ReportMetric(slices.Max(latencies), "worst-ms")
				b.ReportMetric(median(before), "priority-ms")
				b.ReportMetric(slices.Max(before), "priority-worst-ms")
			})
		})
	}
}

// finishedUnderASnapshot makes n tasks that were claimed and done while a snapshot is open, so that their index entries stay.
func finishedUnderASnapshot(tb testing.TB, db *notify.DB, n int) {
	tb.Helper()
	snapshot, err := db.Pool().Connx(tb.Context())
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, snapshot.Close()) })
	for _, statement := range []string{
		"SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ", "START TRANSACTION WITH CONSISTENT SNAPSHOT", "SELECT COUNT(*) FROM mqnotify_task",
	} {
		_, err := snapshot.ExecContext(tb.Context(), statement)
		require.NoError(tb, err)
	}
	mysqltest.Exec(tb, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) "+
		"SELECT 'mail', 'a short payload' FROM n")
	for have := 1000; have < n; have *= 2 {
		mysqltest.Exec(tb, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) SELECT queue, payload FROM mqnotify_task LIMIT ?", min(have, n-have))
	}
	mysqltest.Exec(tb, db.Pool(), "UPDATE mqnotify_task SET state = 'in progress', attempts = 1, state_at = UTC_TIMESTAMP(6) + INTERVAL id MICROSECOND")
	mysqltest.Exec(tb, db.Pool(), "UPDATE mqnotify_task SET state = 'done', state_at = UTC_TIMESTAMP(6)")
}
