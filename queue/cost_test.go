package queue

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A claim, a poll, and a search for tasks that have fallen due read the same few rows, however many
// tasks are done.
func TestFinishedTasksCostNothing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		sizes := []int{1_000, mysqltest.Many(5_000, 20_000, 1_000_000)}
		for _, skip := range []bool{true, false} {
			var reads []map[string]int
			for _, n := range sizes {
				db, _ := database(t, s)
				finished(t, db, n)
				q := newQueue(t, db, Options{})
				enqueue(t, q, "1", "2", "3", "4", "5", "6")
				l := newStore(t, db, skip)
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
				l.scannedAt = time.Now().Add(time.Hour) // behind the last claim, however slow this is
				measure("claim of one", func() error {
					tasks, _, err := l.round(t.Context(), nil, 1)
					require.Len(t, tasks, 1)
					return err
				})
				measure("poll", func() error { _, err := l.poll(t.Context()); return err })
				measure("promote", func() error { _, err := l.promote(t.Context()); return err })
				reads = append(reads, costs)
			}
			t.Logf("rows read with %v tasks done: %v", sizes, reads)
			assert.Equal(t, reads[0], reads[1])
			assert.Less(t, reads[1]["claim"], 40)
		}
	})
}

// One statement stores the outcomes of several handlers, or gives several tasks back.
func TestOutcomesAreBatched(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		for _, c := range []struct {
			kind    outcomeKind
			discard bool
			counter string
			state   string
		}{
			{wasDone, false, "Com_update", stateDone}, {wasDone, true, "Com_delete_multi", ""}, {wasReleased, false, "Com_update", stateReady},
		} {
			mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_task")
			enqueue(t, q, "1", "2", "3", "4", "5", "6")
			l := newStore(t, db, true)
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
			assert.Zero(t, inState(t, db, stateInProgress))
			if c.state != "" {
				assert.Equal(t, 6, inState(t, db, c.state))
			}
		}
	})
}

// counted returns one of the session's counters of statements.
func counted(t *testing.T, l *store, counter string) (n int) {
	t.Helper()
	require.NoError(t, l.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
		var name string
		return conn.QueryRowxContext(ctx, "SHOW SESSION STATUS LIKE '"+counter+"'").Scan(&name, &n)
	}))
	return n
}

// handlerReads returns how many rows the session has read.
func handlerReads(t *testing.T, l *store) (sum int) {
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

// Ten idle workers send at most 0.2 statements a second each. The leader, whose statements
// are not counted, is another worker.
func TestIdleWorkers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const workers = 10
		window := mysqltest.Size(4*time.Second, 12*time.Second, 61*time.Second) // in the long form it contains a poll of each
		db, config := database(t, s)
		q := newQueue(t, db, Options{})
		install(t, db)
		begin := func(config *mysql.Config) {
			var logged mysqltest.Text
			var got collected
			enqueue(t, q, "x") // which it finds when it begins
			work(t, newQueue(t, openConfig(t, config), Options{Logger: slog.New(slog.NewTextHandler(&logged, nil))}), WorkerOptions{}, got.handle)
			eventually(t, func() bool {
				return strings.Contains(logged.String(), "mode=trigger") && inState(t, db, stateReady) == 0
			}, "it does not wait")
		}
		begin(config)
		host, counted := newHost(t, config, "")
		for range workers {
			begin(counted)
		}
		each := 1.0
		for try := 0; try < 3 && each > 0.2; try++ { // what the first tasks began may go on
			before := host.sent.Load()
			<-time.After(window)
			sent := host.sent.Load() - before
			each = float64(sent) / workers / window.Seconds()
			t.Logf("%d statements of %d workers in %v: %.3f a second and worker", sent, workers, window, each)
		}
		assert.LessOrEqual(t, each, 0.2)
	})
}

// From the commit to the handler of an idle worker it takes a few round trips, not the wait
// of a poll.
func TestLatency(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE bare (id BIGINT AUTO_INCREMENT PRIMARY KEY) ENGINE=InnoDB")
		install(t, db)
		quiet := Options{Logger: slog.New(slog.DiscardHandler)}
		q := newQueue(t, db, quiet)
		handled := make(chan time.Time, 1)
		work(t, newQueue(t, openConfig(t, config), quiet), WorkerOptions{}, func(context.Context, Task) error {
			handled <- time.Now()
			return nil
		})
		enqueue(t, q, "first")
		<-handled
		// A busy machine may hold up one round more than its floor.
		mysqltest.Eventually(t, "a task begins soon after its commit", func() bool {
			var floors, latencies []float64
			for range mysqltest.Size(10, 40, 400) {
				<-time.After(25 * time.Millisecond) // idle again
				begun := time.Now()
				mysqltest.Exec(t, db.Pool(), "INSERT INTO bare VALUES ()")
				for range 4 { // the wake, the row, two of the claim
					mysqltest.Exec(t, db.Pool(), "DO 1")
				}
				floors = append(floors, time.Since(begun).Seconds())
				enqueue(t, q, "x")
				committed := time.Now()
				latencies = append(latencies, (<-handled).Sub(committed).Seconds())
			}
			t.Logf("commit to handler: %.2f ms, a commit and four round trips: %.2f ms", 1e3*median(latencies), 1e3*median(floors))
			return median(latencies) < 10*median(floors)
		})
	})
}
