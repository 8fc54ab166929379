package queue

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// benchWorkers is the number of concurrent workers, here and in the bare loop.
const benchWorkers = 4

// BenchmarkClaim measures 4 workers that empty a queue, compared with a bare loop of as many connections
// on a bare table: select with SKIP LOCKED, update, commit; delete. With batches of 100, four Workers run.
// One by one, there are the 4 handlers of one Worker, which stores outcomes
// and claims tasks for all free handlers in one transaction, and, separately, 4 Workers. Rounds take
// turns, on a server with its default durability, and begin when the server has purged the rest of the
// previous one. The figures are medians. Retried are the transactions that met a deadlock, which no caller sees.
//
//	go test ./queue -run - -bench Claim -benchtime 5x
func BenchmarkClaim(b *testing.B) {
	apart := func(batch int) WorkerOptions { return WorkerOptions{Batch: batch} }
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		own := durable(b, s)
		b.Run("batch=100", func(b *testing.B) {
			discard := apart(100)
			discard.Discard = true
			benchmarkClaim(b, own, 100, []contender{{"", benchWorkers, apart(100)}, {"discard-", benchWorkers, discard}})
		})
		b.Run("batch=1", func(b *testing.B) {
			benchmarkClaim(b, own, 1, []contender{{"", 1, WorkerOptions{Concurrency: benchWorkers}}, {"apart-", benchWorkers, apart(1)}})
		})
	})
}

// durable returns a server with its default durability, unlike the tests' servers: every
// commit is on the disk when it returns, and also in MySQL's binary log.
func durable(b *testing.B, s *mysqltest.Server) *mysqltest.Server {
	b.Helper()
	flags := []string{"--innodb-flush-log-at-trx-commit=1"}
	if !s.IsMariaDB() {
		flags = append(flags, "--log-bin=binlog", "--server-id=1", "--sync-binlog=1")
	}
	return s.Start(b, flags...)
}

// contender is one way to empty the queue.
type contender struct {
	name    string
	workers int
	options WorkerOptions
}

func benchmarkClaim(b *testing.B, s *mysqltest.Server, batch int, contenders []contender) {
	b.Helper()
	db, config := database(b, s)
	mysqltest.Exec(b, db.Pool(), "CREATE TABLE bare (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, state TINYINT NOT NULL DEFAULT 0,"+
		" payload LONGBLOB NOT NULL, KEY (state, id)) ENGINE=InnoDB")
	n := 200 * batch
	if batch == 1 {
		n = 4000
	}
	fill := func() {
		mysqltest.Exec(b, db.Pool(), "INSERT INTO bare (payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"+
			" SELECT 'a short payload' FROM n a, (SELECT 1 FROM n LIMIT ?) b", n/1000)
		mysqltest.Exec(b, db.Pool(), "ANALYZE TABLE bare") // or it reads all of it for an UPDATE by ids
		purged(b, db)
	}
	var bare []float64
	ours := make(map[string][]float64)
	var retried uint64
	for b.Loop() {
		fill()
		bare = append(bare, float64(n)/bareLoop(b, db, batch).Seconds())
		for _, c := range contenders {
			mysqltest.Exec(b, db.Pool(), "TRUNCATE mqnotify_task")
			purged(b, db)
			took, met := workAll(b, openConfig(b, config), n, c.workers, c.options)
			retried += met
			ours[c.name] = append(ours[c.name], float64(n)/took.Seconds())
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(median(bare), "bare-tasks/s")
	for _, c := range contenders {
		b.ReportMetric(median(ours[c.name]), c.name+"tasks/s")
		b.ReportMetric(median(ours[c.name])/median(bare), c.name+"ratio")
	}
	b.ReportMetric(float64(retried), "retried")
}

// purged waits until the server has purged what was deleted and changed, which would slow down
// the next round.
func purged(tb testing.TB, db *notify.DB) {
	tb.Helper()
	for left, before := -1, -2; left != before; {
		<-time.After(50 * time.Millisecond)
		before = left
		left = mysqltest.Value[int](tb, db.Pool(), "SELECT count FROM information_schema.innodb_metrics WHERE name = 'trx_rseg_history_len'")
	}
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

// bareLoop empties the bare table, and returns how long that took.
func bareLoop(tb testing.TB, db *notify.DB, batch int) time.Duration {
	tb.Helper()
	conns := make([]*sql.Conn, benchWorkers)
	for i := range conns {
		var err error
		conns[i], err = db.Pool().DB.Conn(tb.Context())
		require.NoError(tb, err)
		defer conns[i].Close()
		_, err = conns[i].ExecContext(tb.Context(), "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
		require.NoError(tb, err)
	}
	begun := time.Now()
	var all sync.WaitGroup
	for _, conn := range conns {
		all.Go(func() {
			for bareStep(tb, conn, batch) {
			}
		})
	}
	all.Wait()
	return time.Since(begun)
}

func bareStep(tb testing.TB, conn *sql.Conn, batch int) bool {
	ctx := tb.Context()
	deadlock := false // MariaDB 11.8 meets one now and then
	run := func(query string) {
		if deadlock {
			return
		}
		_, err := conn.ExecContext(ctx, query)
		deadlock = server.Retryable(err)
		if deadlock {
			_, err = conn.ExecContext(ctx, "ROLLBACK")
		}
		require.NoError(tb, err)
	}
	run("START TRANSACTION")
	rows, err := conn.QueryContext(ctx, "SELECT id, payload FROM bare WHERE state = 0 ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED", batch)
	if server.Retryable(err) {
		run("ROLLBACK")
		return true
	}
	require.NoError(tb, err)
	defer rows.Close()
	var ids []string
	var id string
	var payload []byte
	for rows.Next() {
		require.NoError(tb, rows.Scan(&id, &payload))
		ids = append(ids, id)
	}
	require.NoError(tb, rows.Err())
	if len(ids) == 0 {
		run("COMMIT")
		return false
	}
	in := " WHERE id IN (" + strings.Join(ids, ",") + ")"
	run("UPDATE bare SET state = 1" + in)
	run("COMMIT")
	for done := deadlock; !done; done = !deadlock { // the rows that were updated must be deleted
		deadlock = false
		run("DELETE FROM bare" + in)
	}
	return true
}

// workAll empties the queue with workers. It returns how long it took until all tasks were stored
// as done, and how many transactions were retried.
func workAll(tb testing.TB, db *notify.DB, n, count int, options WorkerOptions) (took time.Duration, retried uint64) {
	tb.Helper()
	install(tb, db)
	q := newQueue(tb, db, Options{Logger: slog.New(slog.DiscardHandler)})
	workers := make([]*running, count)
	for i := range workers {
		workers[i] = work(tb, q, options, func(context.Context, Task) error { return nil })
	}
	done := func() (done int) {
		for _, w := range workers {
			done += w.of("done")
		}
		return done
	}
	enqueue(tb, q, "first")
	eventually(tb, func() bool { return done() == 1 }, "the workers don't work")
	mysqltest.Exec(tb, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"+
		" SELECT 'mail', 'a short payload' FROM n a, (SELECT 1 FROM n LIMIT ?) b", n/1000)
	begun := time.Now()
	q.Notify(tb.Context())
	for done() < n+1 {
		<-time.After(5 * time.Millisecond)
	}
	took = time.Since(begun)
	for _, w := range workers {
		require.NoError(tb, w.end(tb))
		retried += uint64(w.of("retried"))
	}
	return took, retried
}

// BenchmarkFinished measures a claim of one task, in tables with more and more done
// tasks: the cost must not grow with them. The tables take turns, so that other load of the
// machine affects all of them. Microseconds, medians.
//
//	go test ./queue -run - -bench Finished -benchtime 1000x
func BenchmarkFinished(b *testing.B) {
	sizes := []int{1_000, 10_000, 100_000, 1_000_000}
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		own := durable(b, s)
		queues, lines, costs := make([]*Queue, len(sizes)), make([]*store, len(sizes)), make([][]float64, len(sizes))
		var db *notify.DB
		for i, n := range sizes {
			db, _ = database(b, own)
			finished(b, db, n)
			mysqltest.Exec(b, db.Pool(), "ANALYZE TABLE mqnotify_task")
			queues[i], lines[i] = newQueue(b, db, Options{}), newStore(b, db, true)
		}
		written(b, db)
		for b.Loop() {
			for i := range sizes {
				enqueue(b, queues[i], "x")
				begun := time.Now()
				tasks, _, err := lines[i].round(b.Context(), nil, 1)
				costs[i] = append(costs[i], float64(time.Since(begun).Microseconds()))
				require.NoError(b, err)
				require.Len(b, tasks, 1)
				_, _, err = lines[i].round(b.Context(), []outcome{{held: &held{task: tasks[0]}}}, 0)
				require.NoError(b, err)
			}
		}
		b.ReportMetric(0, "ns/op")
		for i, n := range sizes {
			b.ReportMetric(median(costs[i]), fmt.Sprintf("µs/claim-%d", n))
		}
	})
}

// written makes the server write the inserted rows to the disk, which MariaDB does not do by itself, and waits for it.
func written(tb testing.TB, db *notify.DB) {
	tb.Helper()
	was := mysqltest.Value[float64](tb, db.Pool(), "SELECT @@GLOBAL.innodb_max_dirty_pages_pct")
	mysqltest.Exec(tb, db.Pool(), "SET GLOBAL innodb_max_dirty_pages_pct = 0")
	eventually(tb, func() bool {
		var name string
		dirty := 0
		require.NoError(tb, db.Pool().QueryRowContext(tb.Context(), "SHOW GLOBAL STATUS LIKE 'Innodb_buffer_pool_pages_dirty'").Scan(&name, &dirty))
		return dirty < 100
	}, "the server does not write")
	mysqltest.Exec(tb, db.Pool(), "SET GLOBAL innodb_max_dirty_pages_pct = ?", was)
}

// newStore returns a store on a session of its own.
func newStore(tb testing.TB, db *notify.DB, skip bool) *store {
	tb.Helper()
	session, err := core.NewSession(tb.Context(), db, core.SessionOptions{})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, session.Close()) })
	return &store{
		session: session, queue: "mail", owner: "test", answer: defaultAnswer, visibility: time.Minute, skip: skip, skips: true, lapses: defaultLapses,
		retried: func() {}, log: testLogger(tb), locked: map[string]time.Time{},
	}
}

// BenchmarkLatency measures the time from the return of Enqueue, which is after its commit, to the
// start of an idle worker's handler, compared with a round trip and a commit. Medians, ms.
//
//	go test ./queue -run - -bench Latency -benchtime 300x
func BenchmarkLatency(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		own := durable(b, s)
		db, config := database(b, own)
		mysqltest.Exec(b, db.Pool(), "CREATE TABLE bare (id BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB")
		install(b, db)
		quiet := Options{Logger: slog.New(slog.DiscardHandler)}
		q := newQueue(b, db, quiet)
		handled := make(chan time.Time, 1)
		work(b, newQueue(b, openConfig(b, config), quiet), WorkerOptions{}, func(context.Context, Task) error {
			handled <- time.Now()
			return nil
		})
		enqueue(b, q, "first")
		<-handled
		var trips, commits, latencies []float64
		ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
		for b.Loop() {
			<-time.After(30 * time.Millisecond) // idle again
			begun := time.Now()
			mysqltest.Exec(b, db.Pool(), "DO 1")
			trips = append(trips, ms(time.Since(begun)))
			begun = time.Now()
			mysqltest.Exec(b, db.Pool(), "INSERT INTO bare VALUES ()")
			commits = append(commits, ms(time.Since(begun)))
			enqueue(b, q, "x")
			committed := time.Now()
			latencies = append(latencies, ms((<-handled).Sub(committed)))
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(median(trips), "trip-ms")
		b.ReportMetric(median(commits), "commit-ms")
		b.ReportMetric(median(latencies), "commit-to-handler-ms")
		b.ReportMetric(latencies[len(latencies)*9/10], "p90-ms")
	})
}

// BenchmarkMillion measures 4 workers that empty a queue of a million tasks, in batches of 100: tasks a second over the first tenth,
// and over the last, and the time from an urgent task's commit to its handler, in the middle, in ms: the median and the
// worst of 30. Idle is the same with an empty queue. The server has its default durability.
//
//	go test ./queue -run - -bench Million -benchtime 1x -timeout 30m
func BenchmarkMillion(b *testing.B) {
	const tasks = 1_000_000
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db, config := database(b, durable(b, s))
		install(b, db)
		quiet := Options{Logger: slog.New(slog.DiscardHandler)}
		q := newQueue(b, db, quiet)
		for b.Loop() {
			handled, began := make(chan time.Time, 1), make(chan struct{})
			var done atomic.Int64
			var first sync.Once
			own := newQueue(b, openConfig(b, config), quiet)
			workers := make([]*running, benchWorkers)
			for i := range workers {
				workers[i] = work(b, own, WorkerOptions{Batch: 100}, func(_ context.Context, t Task) error {
					if string(t.Payload) == "urgent" {
						handled <- time.Now()
						return nil
					}
					first.Do(func() { close(began) })
					done.Add(1)
					return nil
				})
			}
			urgent := func() float64 {
				_, err := q.Enqueue(b.Context(), Entry{Payload: []byte("urgent"), Priority: -1})
				require.NoError(b, err)
				committed := time.Now()
				return max(0, float64((<-handled).Sub(committed))/float64(time.Millisecond))
			}
			urgent()
			var idle, busy []float64
			for range 30 {
				idle = append(idle, urgent())
			}
			mysqltest.Exec(b, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000)"+
				" SELECT 'mail', 'a short payload' FROM n a, n b")
			q.Notify(b.Context())
			<-began
			reach := func(n int64) time.Time {
				for done.Load() < n {
					<-time.After(time.Millisecond)
				}
				return time.Now()
			}
			start := time.Now()
			tenth := reach(tasks / 10).Sub(start)
			for i := range int64(30) {
				reach(tasks * (10 + 2*i) / 100)
				busy = append(busy, urgent())
			}
			ninth := reach(tasks * 9 / 10)
			end := reach(tasks)
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(tasks/10/tenth.Seconds(), "first-tasks/s")
			b.ReportMetric(tasks/10/end.Sub(ninth).Seconds(), "last-tasks/s")
			b.ReportMetric(tasks/end.Sub(start).Seconds(), "tasks/s")
			b.ReportMetric(median(idle), "idle-ms")
			b.ReportMetric(median(busy), "urgent-ms")
			b.ReportMetric(slices.Max(busy), "urgent-worst-ms")
			for _, w := range workers {
				require.NoError(b, w.end(b))
			}
			mysqltest.Exec(b, db.Pool(), "TRUNCATE mqnotify_task")
		}
	})
}
