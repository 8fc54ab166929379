package queue

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A claim, a look, and a search for what fell due read the same few rows, however many
// tasks are done.
func TestFinishedTasksCostNothing(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		sizes := []int{1_000, 30_000}
		if os.Getenv("MQNOTIFY_LONG") != "" {
			sizes = []int{1_000, 1_000_000}
		}
		for _, skip := range []bool{true, false} {
			var reads []map[string]int
			for _, n := range sizes {
				db, _ := database(t, s)
				finished(t, db, n)
				q := newQueue(t, db, Options{})
				enqueue(t, q, "1", "2", "3", "4", "5", "6")
				l := newLine(t, db, skip)
				costs := map[string]int{}
				measure := func(what string, f func() error) {
					before := handlerReads(t, l)
					require.NoError(t, f())
					costs[what] = handlerReads(t, l) - before
				}
				measure("claim", func() error {
					tasks, _, err := l.round(t.Context(), nil, 3)
					require.Len(t, tasks, 3)
					return err
				})
				l.swept = time.Now().Add(time.Hour) // behind the last claim, however slow this is
				measure("claim of one", func() error {
					tasks, _, err := l.round(t.Context(), nil, 1)
					require.Len(t, tasks, 1)
					return err
				})
				measure("look", func() error { _, err := l.look(t.Context()); return err })
				measure("promote", func() error { _, err := l.promote(t.Context()); return err })
				reads = append(reads, costs)
			}
			t.Logf("rows read with %v tasks done: %v", sizes, reads)
			assert.Equal(t, reads[0], reads[1])
			assert.Less(t, reads[1]["claim"], 40)
		}
	})
}

// What several handlers have done, or give back, is a statement for all of them.
func TestSettlesTogether(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		for _, c := range []struct {
			kind    outcomeKind
			discard bool
			counter string
			state   State
		}{
			{wasDone, false, "Com_update", Done}, {wasDone, true, "Com_delete_multi", ""}, {wasReleased, false, "Com_update", Ready},
		} {
			execute(t, db, "DELETE FROM mqnotify_task")
			enqueue(t, q, "1", "2", "3", "4", "5", "6")
			l := newLine(t, db, true)
			l.discard = c.discard
			tasks, _, err := l.round(t.Context(), nil, 6)
			require.NoError(t, err)
			outcomes := make([]outcome, len(tasks))
			for i := range tasks {
				outcomes[i] = outcome{held: &held{task: tasks[i]}, kind: c.kind}
			}
			before := counted(t, l, c.counter)
			_, _, err = l.round(t.Context(), outcomes, 0)
			require.NoError(t, err)
			assert.Equal(t, 1, counted(t, l, c.counter)-before, c.counter)
			assert.Zero(t, inState(t, db, InProgress))
			if c.state != "" {
				assert.Equal(t, 6, inState(t, db, c.state))
			}
		}
	})
}

// counted is one of the session's counters of statements.
func counted(t *testing.T, l *line, counter string) (n int) {
	t.Helper()
	require.NoError(t, l.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
		var name string
		return conn.QueryRowxContext(ctx, "SHOW SESSION STATUS LIKE '"+counter+"'").Scan(&name, &n)
	}))
	return n
}

// handlerReads are the rows that the session has read so far.
func handlerReads(t *testing.T, l *line) (sum int) {
	t.Helper()
	require.NoError(t, l.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
		rows, err := conn.QueryxContext(ctx, "SHOW SESSION STATUS LIKE 'Handler\\_read\\_%'")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var name string
			var n int
			if err := rows.Scan(&name, &n); err != nil {
				return err
			}
			if name != "Handler_read_rnd_next" { // SHOW STATUS counts its own rows there
				sum += n
			}
		}
		return rows.Err()
	}))
	return sum
}

// Ten workers with nothing to do make 0.2 statements a second each at most. What the
// gate's keeper sends is told apart by a second server with one worker.
func TestIdleWorkers(t *testing.T) {
	t.Parallel()
	const more = 10
	window := 12 * time.Second
	if os.Getenv("MQNOTIFY_LONG") != "" {
		window = 61 * time.Second // longer than Look
	}
	type pair struct {
		name      string
		one, many *mysqltest.Server
	}
	var pairs []pair
	mysqltest.Each(t, func(_ *testing.T, s *mysqltest.Server) { // all wait at once, and live as long as this test
		pairs = append(pairs, pair{s.Name(), idle(t, s.Start(t), 1), idle(t, s.Start(t), 1+more)})
	})
	var measured sync.WaitGroup
	for _, p := range pairs {
		measured.Go(func() {
			each := 1.0
			for try := 0; try < 3 && each > 0.2; try++ { // what the first tasks began may go on
				before := []uint64{p.one.Questions(t), p.many.Questions(t)}
				<-time.After(window)
				one, many := float64(p.one.Questions(t)-before[0]), float64(p.many.Questions(t)-before[1])
				each = (many - one) / more / window.Seconds()
				t.Logf("%s: %.0f statements in %v with one worker and the keeper, %.0f with %d more: %.3f a second and worker",
					p.name, one, window, many, more, each)
			}
			assert.LessOrEqual(t, each, 0.2, p.name)
		})
	}
	measured.Wait()
}

// idle has so many workers, each with connections of its own, wait on a server.
func idle(tb testing.TB, s *mysqltest.Server, workers int) *mysqltest.Server {
	tb.Helper()
	db, config := database(tb, s)
	quiet := Options{Logger: slog.New(slog.DiscardHandler)}
	for range workers {
		var got collected
		enqueue(tb, newQueue(tb, db, Options{NoGate: true, Logger: quiet.Logger}), "x") // which it finds when it begins
		work(tb, newQueue(tb, openConfig(tb, config), quiet), WorkerOptions{}, got.handle)
		eventually(tb, func() bool { return inState(tb, db, Ready) == 0 }, "no work")
	}
	eventually(tb, func() bool {
		before := s.Questions(tb)
		<-time.After(time.Second)
		return s.Questions(tb)-before < 8
	}, "what the first tasks began does not end")
	return s
}

// From the commit to the handler of an idle worker it takes a few round trips, not a
// poll's wait.
func TestLatency(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		execute(t, db, "CREATE TABLE bare (id BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB")
		quiet := Options{Logger: slog.New(slog.DiscardHandler)}
		q := newQueue(t, db, quiet)
		require.NoError(t, q.Join(t.Context()))
		handled := make(chan time.Time, 1)
		work(t, newQueue(t, openConfig(t, config), quiet), WorkerOptions{}, func(context.Context, Task) error {
			handled <- time.Now()
			return nil
		})
		enqueue(t, q, "first")
		<-handled
		var floors, latencies []float64
		for range 40 {
			<-time.After(25 * time.Millisecond) // idle again
			begun := time.Now()
			execute(t, db, "INSERT INTO bare VALUES ()")
			for range 4 { // the ring, the wake, two of the claim
				execute(t, db, "DO 1")
			}
			floors = append(floors, time.Since(begun).Seconds())
			enqueue(t, q, "x")
			committed := time.Now()
			latencies = append(latencies, (<-handled).Sub(committed).Seconds())
		}
		t.Logf("commit to handler: %.2f ms, a commit and four round trips: %.2f ms", 1e3*median(latencies), 1e3*median(floors))
		assert.Less(t, median(latencies), 10*median(floors))
	})
}
