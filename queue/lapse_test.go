package queue

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// lapse makes all claims lapse, and ends the waits after that.
func lapse(tb testing.TB, db *notify.DB, l *store) {
	tb.Helper()
	mysqltest.Exec(tb, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'in progress'")
	_, err := l.promote(tb.Context())
	require.NoError(tb, err)
	endWaits(tb, db)
	_, err = l.promote(tb.Context())
	require.NoError(tb, err)
}

func endWaits(tb testing.TB, db *notify.DB) {
	tb.Helper()
	mysqltest.Exec(tb, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'failed'")
}

// endClaims makes the claims of a killed worker lapse at once, and the tasks come back at the same time.
func endClaims(t *testing.T, db *notify.DB) {
	t.Helper()
	l := newStore(t, db, true)
	l.lapses = poisonLapses
	lapse(t, db, l)
}

const poisonLapses = 4

// tasksBy is the number of tasks in a state, and the sums of their columns.
func tasksBy(t *testing.T, db *notify.DB, state string, columns ...string) string {
	t.Helper()
	sums := []string{"COUNT(*)"}
	for _, c := range columns {
		sums = append(sums, "'"+c+"'", "COALESCE("+c+", 0)")
	}
	return mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT_WS(' ', "+strings.Join(sums, ", ")+") FROM mqnotify_task WHERE state = ?", state)
}

// A task that kills its workers is dead after its lapses. It takes no other task with it, even if tasks that lapsed
// together come back together: each of them lapses at most twice, and keeps its retries.
func TestPoison(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, config := database(t, s)
		makeRuns(t, db)
		payloads := make([]string, mysqltest.Many(20, 60, 60))
		for i := range payloads {
			payloads[i] = "long"
		}
		payloads[3] = "poison"
		poison := enqueue(t, newQueue(t, db, Options{}), payloads...)[3]
		crashes := 0
		for done := len(payloads) - 1; inState(t, db, stateDead) == 0 || inState(t, db, stateDone) < done; {
			p := startProcess(t, processTold{
				Role: "worker", Name: fmt.Sprintf("worker%d", crashes), DSN: config.FormatDSN(), Record: config.FormatDSN(), Claim: mode,
				Handlers: 10, Lapses: poisonLapses, Visibility: time.Minute, Takes: 100 * time.Millisecond,
			})
			ended := false
			eventually(t, func() bool {
				select {
				case <-p.ended:
					ended = true
				default:
				}
				return ended || inState(t, db, stateDead) == 1 && inState(t, db, stateDone) == done
			}, "the worker goes on and does nothing")
			if !ended {
				break
			}
			crashes++
			require.LessOrEqual(t, crashes, poisonLapses+1, "the poison lives on")
			endClaims(t, db)
		}
		assert.Equal(t, poisonLapses+1, crashes)
		assert.Equal(t, poison, mysqltest.Value[uint64](t, db.Pool(), "SELECT MAX(id) FROM mqnotify_task WHERE state = 'dead'"))
		assert.Equal(t, fmt.Sprintf("1 MAX(lapses) %d MIN(retries) %d", poisonLapses+1, defaultRetries), tasksBy(t, db, stateDead, "MAX(lapses)", "MIN(retries)"))
		assert.Equal(t, fmt.Sprintf("%d MIN(retries) %d MAX(lapses) > 2 0", len(payloads)-1, defaultRetries),
			tasksBy(t, db, stateDone, "MIN(retries)", "MAX(lapses) > 2"))
	})
}

// kill -9 of a worker costs the tasks of a batch that no handler had begun only a wait: no retry, and the next worker does those
// without retries. The begun task without retries is dead, and never begun twice.
func TestBatchKilled(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		for name, c := range map[string]struct {
			retries    int
			done, dead int
		}{
			"retries":   {2, 20, 0},
			"noRetries": {noRetries, 19, 1},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, config := database(t, s)
				makeRuns(t, db)
				entries := make([]Entry, 20)
				for i := range entries {
					entries[i].Retries = c.retries
				}
				entries[2].Payload = []byte("long")
				q := newQueue(t, db, Options{})
				ids, err := q.Enqueue(t.Context(), entries...)
				require.NoError(t, err)
				p := startProcess(t, processTold{
					Role: "worker", Name: "killed", DSN: config.FormatDSN(), Record: config.FormatDSN(), Claim: mode,
					Handlers: 1, Batch: 100, Visibility: time.Minute, Takes: time.Hour,
				})
				eventually(t, func() bool {
					return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM runs WHERE task = ?", ids[2]) == 1
				}, "the third task does not begin")
				p.kill()
				endClaims(t, db)
				var got collected
				work(t, q, WorkerOptions{Claim: mode, Batch: 100}, got.handle)
				eventually(t, func() bool { return inState(t, db, stateDone) == c.done && inState(t, db, stateDead) == c.dead }, "not all are settled")
				assert.Equal(t, c.retries > 0, mysqltest.Value[bool](t, db.Pool(), "SELECT state = 'done' FROM mqnotify_task WHERE id = ?", ids[2]))
				assert.Equal(t, retriesOf(c.retries), mysqltest.Value[int](t, db.Pool(), "SELECT MIN(retries) FROM mqnotify_task"))
				assert.LessOrEqual(t, mysqltest.Value[int](t, db.Pool(), "SELECT MAX(lapses) FROM mqnotify_task"), 1)
			})
		}
	})
}

// A task whose claim lapses comes back after a wait, not with all others at the same moment, at most Lapses times. One
// without a retry left does not come back.
func TestLapse(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		_, err := newQueue(t, db, Options{}).Enqueue(t.Context(), Entry{}, Entry{}, Entry{}, Entry{Retries: noRetries})
		require.NoError(t, err)
		l := newStore(t, db, mode == claimSkipLocked)
		l.lapses = 2
		tasks, _, err := l.round(t.Context(), nil, 4)
		require.NoError(t, err)
		require.Len(t, tasks, 4)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND")
		before := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
		_, err = l.promote(t.Context())
		require.NoError(t, err)
		after := mysqltest.Value[string](t, db.Pool(), "SELECT CAST(UTC_TIMESTAMP(6) AS CHAR)")
		assert.Equal(t, "1 MAX(lapses) 1", tasksBy(t, db, stateDead, "MAX(lapses)"))
		assert.Equal(t, "3 MAX(lapses) 1 MIN(retries) 5 COUNT(DISTINCT state_at) 3", tasksBy(t, db, stateFailed, "MAX(lapses)", "MIN(retries)", "COUNT(DISTINCT state_at)"))
		assert.Equal(t, 3, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state = 'failed'"+
			" AND state_at BETWEEN ? + INTERVAL 500000 MICROSECOND AND ? + INTERVAL 1500000 MICROSECOND", before, after), "about a second")

		for lapses := 2; lapses <= 3; lapses++ {
			endWaits(t, db)
			_, err = l.promote(t.Context())
			require.NoError(t, err)
			require.Equal(t, 3, inState(t, db, stateReady))
			for i := range 3 {
				l.passed = Task{} // on a slow machine a claim may look only behind the last one
				claimed, _, err := l.round(t.Context(), nil, 4)
				require.NoError(t, err)
				require.Equal(t, idsOf(tasks[i:i+1]), idsOf(claimed), "alone")
				require.Equal(t, lapses, claimed[0].Attempt)
				require.Equal(t, lapses-1, claimed[0].Lapses)
			}
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state_at = UTC_TIMESTAMP(6) - INTERVAL 1 SECOND WHERE state = 'in progress'")
			_, err = l.promote(t.Context())
			require.NoError(t, err)
		}
		assert.Equal(t, "4 MAX(lapses) 3", tasksBy(t, db, stateDead, "MAX(lapses)"))
	})
}

// A claim takes a lapsed task alone, and tasks without retries only as far as handlers
// begin at once. The tasks that it leaves stay unchanged.
func TestClaimedTogether(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		ids, err := newQueue(t, db, Options{}).Enqueue(t.Context(), Entry{}, Entry{Retries: noRetries}, Entry{}, Entry{Retries: noRetries}, Entry{}, Entry{}, Entry{})
		require.NoError(t, err)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET lapses = 1 WHERE id IN (?, ?)", ids[4], ids[6])
		l := newStore(t, db, mode == claimSkipLocked)
		for _, c := range []struct {
			begin, from, to int
			short           bool
		}{
			{2, 0, 3, false}, // up to the one without retries that had to wait
			{2, 3, 4, false}, // up to the one that has lapsed
			{1, 4, 5, false}, // alone
			{1, 5, 6, false}, // the claim asks for as many as begin at once
			{1, 6, 7, true},
		} {
			l.surplus = 10 - c.begin
			claimed, _, err := l.round(t.Context(), nil, 10)
			require.NoError(t, err)
			require.ElementsMatch(t, ids[c.from:c.to], idsOf(claimed))
			require.Equal(t, c.short, l.short, "%+v", c)
			require.Equal(t, len(ids)-c.to, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"+
				" WHERE state = 'ready' AND claim_order = priority AND attempts = 0 AND owner = ''"))
		}
	})
}

// A claim that met a task without retries asks for as many tasks as begin at once, because it would leave the others.
// Later claims ask for more and more.
func TestClaimGrows(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		entries := make([]Entry, 40)
		for i := range 5 {
			entries[i].Retries = noRetries
		}
		_, err := newQueue(t, db, Options{}).Enqueue(t.Context(), entries...)
		require.NoError(t, err)
		l := newStore(t, db, true)
		l.surplus = 18
		for _, n := range []int{2, 2, 2, 2, 4, 8, 16, 4} {
			claimed, _, err := l.round(t.Context(), nil, 20)
			require.NoError(t, err)
			require.Len(t, claimed, n)
		}
		require.True(t, l.short)
	})
}

// A task that has lapsed twice is handled alone: its worker begins it when it has no other task, and begins no
// other until it has ended. Tasks behind it wait for that.
func TestHandledAlone(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		begun, end := make(chan string, 10), make(chan struct{})
		var inHand atomic.Int32
		w := work(t, q, WorkerOptions{Claim: mode, Concurrency: 3, StopTimeout: -1}, func(ctx context.Context, task Task) error {
			n := inHand.Add(1)
			defer inHand.Add(-1)
			if task.Lapses > 0 {
				assert.Equal(t, int32(1), n, "alone")
			}
			begun <- string(task.Payload)
			select {
			case <-end:
			case <-ctx.Done():
			}
			if task.Lapses > 0 {
				assert.Equal(t, int32(1), inHand.Load(), "still alone")
			}
			return nil
		})
		enqueue(t, q, "first")
		assert.Equal(t, "first", mysqltest.Receive(t, begun))
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload, lapses) VALUES ('mail', 'suspect', 2), ('mail', 'behind', 0), ('mail', 'behind', 0)")
		q.changed()
		eventually(t, func() bool { return inState(t, db, stateFailed) == 1 }, "the worker does not keep the task for later")
		end <- struct{}{}
		assert.Equal(t, "suspect", mysqltest.Receive(t, begun))
		assert.Equal(t, 2, inState(t, db, stateReady))
		end <- struct{}{}
		assert.Equal(t, "behind", mysqltest.Receive(t, begun))
		assert.Equal(t, "behind", mysqltest.Receive(t, begun))
		close(end)
		eventually(t, func() bool { return inState(t, db, stateDone) == 4 }, "not done")
		require.NoError(t, w.end(t))
		assert.Equal(t, 4, mysqltest.Value[int](t, db.Pool(), "SELECT SUM(attempts) FROM mqnotify_task"), "each was claimed once")
	})
}

// A worker that waits to handle a task alone claims other tasks again after a while, because its current task may be long.
func TestHandledAloneLater(t *testing.T) {
	eachMode(t, func(t *testing.T, s *mysqltest.Server, mode string) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		begun, end := make(chan string, 10), make(chan struct{})
		var inHand atomic.Int32
		w := work(t, q, WorkerOptions{Claim: mode, Concurrency: 3, Visibility: 12 * time.Second, StopTimeout: -1}, func(ctx context.Context, task Task) error {
			assert.True(t, inHand.Add(1) == 1 || task.Lapses == 0, "alone")
			defer inHand.Add(-1)
			begun <- string(task.Payload)
			if string(task.Payload) == "long" {
				select {
				case <-end:
				case <-ctx.Done():
				}
			}
			return nil
		})
		enqueue(t, q, "long")
		assert.Equal(t, "long", mysqltest.Receive(t, begun))
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload, lapses) VALUES ('mail', 'suspect', 2), ('mail', 'behind', 0)")
		q.changed()
		assert.Equal(t, "behind", mysqltest.Receive(t, begun))
		close(end)
		assert.Equal(t, "suspect", mysqltest.Receive(t, begun))
		eventually(t, func() bool { return inState(t, db, stateDone) == 3 }, "not done")
		require.NoError(t, w.end(t))
	})
}
