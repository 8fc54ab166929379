package queue

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// claimRow is the columns of a task that a claim changes.
type claimRow struct {
	State     string
	Attempts  int
	Owner     string
	LastError *string `db:"last_error"`
	Holds     bool
}

func claimRowOf(t *testing.T, db *notify.DB, id uint64) (r claimRow) {
	t.Helper()
	require.NoError(t, db.Pool().GetContext(t.Context(), &r,
		"SELECT state, attempts, owner, last_error, state_at > UTC_TIMESTAMP(6) + INTERVAL 30 SECOND AS holds FROM mqnotify_task WHERE id = ?", id))
	return r
}

// reserving returns a store that has reserved n tasks, and does not let them expire during the test.
func reserving(t *testing.T, db *notify.DB, n int) *store {
	t.Helper()
	l := newStore(t, db, true)
	require.NoError(t, l.reserve(t.Context(), n))
	l.reserved.until = time.Now().Add(time.Hour)
	return l
}

// claims returns the claims of a round.
func claims(t *testing.T, l *store, want int, outcomes ...outcome) []Task {
	t.Helper()
	tasks, _, err := l.round(t.Context(), outcomes, want)
	require.NoError(t, err)
	return tasks
}

func doneOf(tasks ...Task) (outcomes []outcome) {
	for _, task := range tasks {
		outcomes = append(outcomes, outcome{held: &held{task: task}})
	}
	return outcomes
}

// One statement claims the next reserved tasks, and settles the previous ones, without a search; every
// task gets its own values.
func TestReserved(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2", "3", "4", "5")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET last_error = 'before', attempts = 2")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET attempts = 7 WHERE id = ?", ids[1])
		l := reserving(t, db, 5)
		counters := []string{"Com_update", "Com_select", "Com_begin", "Com_commit"}
		spent := func(f func()) (n []int) {
			for _, c := range counters {
				n = append(n, -counted(t, l, c))
			}
			f()
			for i, c := range counters {
				n[i] += counted(t, l, c)
			}
			return n
		}
		before := "before"
		isClaimed := claimRow{State: stateInProgress, Attempts: 3, Owner: "test", LastError: &before, Holds: true}
		isDone := claimRow{State: stateDone, Attempts: 3, Owner: "test"}

		var first, third []Task
		assert.Equal(t, []int{1, 0, 0, 0}, spent(func() { first = claims(t, l, 2) }))
		require.Equal(t, ids[:2], idsOf(first))
		assert.Equal(t, []int{3, 8}, []int{first[0].Attempt, first[1].Attempt})
		assert.Equal(t, "1", string(first[1].Payload))
		assert.Equal(t, isClaimed, claimRowOf(t, db, ids[0]))
		assert.Equal(t, []int{1, 0, 0, 0}, spent(func() { third = claims(t, l, 1, doneOf(first...)...) }))
		require.Equal(t, ids[2:3], idsOf(third))
		isDone.Attempts = 8
		assert.Equal(t, isDone, claimRowOf(t, db, ids[1]))
		isDone.Attempts = 3
		assert.Equal(t, isDone, claimRowOf(t, db, ids[0]))
		assert.Equal(t, isClaimed, claimRowOf(t, db, ids[2]))

		// Outcomes that are not simply done are settled in the same transaction.
		failed := doneOf(third...)
		failed[0].kind, failed[0].text = wasFailed, "after"
		var fourth []Task
		assert.Equal(t, []int{2, 1, 1, 1}, spent(func() { fourth = claims(t, l, 1, failed...) }), "of them SELECT ROW_COUNT()")
		require.Equal(t, ids[3:4], idsOf(fourth))
		after := claimRowOf(t, db, ids[2])
		assert.Equal(t, stateFailed, after.State)
		assert.Equal(t, "after", *after.LastError)
		assert.Equal(t, 2, after.Attempts-1)

		// The last reserved task, the task behind it, and nothing.
		fifth := claims(t, l, 1, doneOf(fourth...)...)
		require.Equal(t, ids[4:5], idsOf(fifth))
		sixth := claims(t, l, 1, doneOf(fifth...)...)
		require.Equal(t, ids[5:], idsOf(sixth))
		assert.Empty(t, claims(t, l, 1, doneOf(sixth...)...))
		for _, i := range []int{3, 4, 5} {
			assert.Equal(t, isDone, claimRowOf(t, db, ids[i]))
		}
		assert.Equal(t, after, claimRowOf(t, db, ids[2]))
	})
}

// Every worker may claim reserved tasks: one that searches takes them, and the one that has reserved them
// finds others, and still stores its outcomes. Other reserving workers skip them, until they expire.
func TestReservedTasksCanBeClaimed(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2", "3", "4", "5", "6")
		// as long as the test takes
		hold := func(l *store) {
			l.reserved.owner = mysqltest.Value[string](t, db.Pool(), "SELECT CONCAT('~', UTC_TIMESTAMP(6) + INTERVAL 50 SECOND)")
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET owner = ? WHERE "+among(idsOf(l.reserved.tasks)), l.reserved.owner)
		}
		l := reserving(t, db, 4)
		hold(l)
		first := claims(t, l, 1)
		require.Equal(t, ids[:1], idsOf(first))

		second := reserving(t, db, 2)
		hold(second)
		assert.Equal(t, ids[4:5], idsOf(claims(t, second, 1)))

		idle := newStore(t, db, true)
		idle.owner = "idle"
		taken := claims(t, idle, 2)
		require.Equal(t, ids[1:3], idsOf(taken))
		assert.Equal(t, ids[3:4], idsOf(claims(t, l, 1, doneOf(first...)...)))
		assert.Equal(t, stateDone, claimRowOf(t, db, ids[0]).State)
		for _, id := range ids[1:3] {
			assert.Equal(t, claimRow{State: stateInProgress, Attempts: 1, Owner: "idle", Holds: true}, claimRowOf(t, db, id))
		}

		// Of several reserved tasks it gets the remaining ones, and others for the rest.
		third := reserving(t, db, 1)
		third.reserved.tasks = append([]Task{{ID: taken[0].ID}}, third.reserved.tasks...)
		assert.Equal(t, []uint64{ids[6], ids[5]}, idsOf(claims(t, third, 2)))
	})
}

// Reservations expire, also one with an expiry of a wrong clock, and no list shows them.
func TestReservationsExpire(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2", "3")
		for i, until := range []string{"- INTERVAL 1 MICROSECOND", "+ INTERVAL 50 SECOND", "+ INTERVAL 1 HOUR", "+ INTERVAL 50 SECOND"} {
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET owner = CONCAT('~', UTC_TIMESTAMP(6) "+until+") WHERE id = ?", ids[i])
		}
		list, err := q.List(t.Context(), Filter{})
		require.NoError(t, err)
		for _, i := range list {
			assert.Empty(t, i.Owner)
		}
		assert.Equal(t, []uint64{ids[0], ids[2]}, idsOf(reserving(t, db, 4).reserved.tasks))
		assert.Equal(t, "_x", shortOwner("~x"))
	})
}

// A reserved task that a search claims is not claimed again, whether the worker wants too many at
// once or has reserved too few.
func TestReservedAndSearched(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, make([]string, 60)...)
		l := reserving(t, db, 40)
		first := claims(t, l, 1)
		many := claims(t, l, reserveBelow, doneOf(first...)...)
		require.Equal(t, ids[1:1+reserveBelow], idsOf(many))
		assert.Equal(t, ids[1+reserveBelow:3+reserveBelow], idsOf(claims(t, l, 2, doneOf(many[0])...)))

		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_task")
		ids = enqueue(t, q, "0", "1")
		hurries := func(l *store) *store {
			l.reserved.found, l.reserved.since = 1000, time.Now().Add(time.Hour)
			return l
		}
		l = hurries(newStore(t, db, true))
		some := claims(t, l, 3)
		require.Equal(t, ids, idsOf(some))
		assert.Empty(t, claims(t, l, 2, doneOf(some[0])...))

		// A task that was made ready again is not the reserved one any more.
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_task")
		ids = enqueue(t, q, "0", "1")
		l = reserving(t, db, 1)
		_, err := q.Cancel(t.Context(), Filter{IDs: ids[:1]})
		require.NoError(t, err)
		_, err = q.Retry(t.Context(), Filter{IDs: ids[:1]}, 1)
		require.NoError(t, err)
		anew := claims(t, l, 1)
		require.Equal(t, ids[:1], idsOf(anew))
		assert.Equal(t, 1, anew[0].Retries)
	})
}

// If a claim lapsed, its worker does not settle it, whether another worker has the task or none. If it claims the
// task again, it does not confuse the second claim with the first.
func TestReservedAfterALapse(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1")
		l := reserving(t, db, 1)
		first := claims(t, l, 1)
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET state = 'ready', state_at = DEFAULT, owner = '' WHERE id = ?", ids[0])
		require.NoError(t, l.reserve(t.Context(), 2))
		l.reserved.until = time.Now().Add(time.Hour)
		second := claims(t, l, 1, doneOf(first...)...)
		require.Equal(t, ids[:1], idsOf(second))
		assert.Equal(t, 2, second[0].Attempt)
		assert.Equal(t, claimRow{State: stateInProgress, Attempts: 2, Owner: "test", Holds: true}, claimRowOf(t, db, ids[0]))

		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET owner = 'another', attempts = 3 WHERE id = ?", ids[0])
		assert.Equal(t, ids[1:], idsOf(claims(t, l, 1, doneOf(second...)...)), "that one outcome came too late")
		assert.Equal(t, claimRow{State: stateInProgress, Attempts: 3, Owner: "another", Holds: true}, claimRowOf(t, db, ids[0]))
	})
}

// A large payload is read when its task is claimed, in its order, and not before.
func TestReservedLarge(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		large := strings.Repeat("x", reservePayload+1)
		ids := enqueue(t, q, "", large[1:], large, "3")
		l := reserving(t, db, 4)
		require.Equal(t, ids[:2], idsOf(l.reserved.tasks))
		assert.NotEmpty(t, claimRowOf(t, db, ids[1]).Owner)
		assert.Empty(t, claimRowOf(t, db, ids[3]).Owner, "of the one behind it")
		assert.Empty(t, claims(t, l, 1)[0].Payload)
		assert.Len(t, claims(t, l, 1)[0].Payload, reservePayload)
		third := claims(t, l, 1)
		require.Equal(t, ids[2:3], idsOf(third))
		assert.Len(t, third[0].Payload, len(large))

		// The worker does not read it repeatedly without use, and finds a task before its last claim.
		enqueue(t, q, make([]string, 10)...)
		claims(t, l, 2)
		urgent, err := q.Enqueue(t.Context(), Entry{Payload: []byte(large), Priority: -1})
		require.NoError(t, err)
		l.scannedAt = time.Now().Add(time.Hour)
		l.reserved = reservations{found: 1000, since: time.Now().Add(time.Hour)}
		assert.Equal(t, urgent, idsOf(claims(t, l, 1)))
		l.reserved.found, l.reserved.since = 1000, time.Now().Add(time.Hour)
		require.NotZero(t, l.reserved.rest)
		assert.Zero(t, l.reserved.pace(1, l.reserved.rest.Add(-1)))
		assert.Equal(t, reserveFrom, l.reserved.pace(1, l.reserved.rest), "few again")
	})
}

// A worker that claims few tasks at a time, one time after the other, reserves the next ones. One that finds too few,
// is slow, claims many or claims in order does not.
func TestPace(t *testing.T) {
	begun := time.Now()
	rounds := func(n, found, want int, took time.Duration) int {
		r := reservations{since: begun, most: reserveMost}
		for range n {
			r.count(found, want, begun)
		}
		return r.pace(want, begun.Add(took))
	}
	assert.Zero(t, rounds(reserveFrom-1, 1, 1, 0))
	assert.Equal(t, reserveMost, rounds(reserveFrom, 1, 1, 0))
	assert.Equal(t, 50, rounds(10, 1, 1, reserveFor/5))
	assert.Equal(t, 100, rounds(10, 2, 2, reserveFor/5))
	assert.Zero(t, rounds(10, 1, 1, 2*reserveFor), "slow")
	assert.Zero(t, rounds(10, 1, 2, 0), "finds too little")
	r := &reservations{since: begun, found: 100}
	assert.Equal(t, 2*reserveFrom, r.pace(2, begun), "few at first")
	assert.Zero(t, r.pace(2, begun), "once")

	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, make([]string, 100)...)
		l := newStore(t, db, true)
		hurry := func(l *store) {
			l.reserved.since, l.reserved.until = time.Now().Add(time.Hour), time.Now().Add(time.Hour)
		}
		before := counted(t, l, "Com_select")
		for i := range 50 {
			hurry(l)
			require.Equal(t, ids[i:i+1], idsOf(claims(t, l, 1)), "in order")
		}
		assert.Equal(t, reserveFrom+3*2, counted(t, l, "Com_select")-before, "searches, then one for each 8, 16 and 32 that are reserved, and until when")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET owner = ''")
		many := newStore(t, db, true)
		many.reserved.found = 1000
		hurry(many)
		require.Len(t, claims(t, many, reserveBelow), reserveBelow)
		assert.Empty(t, many.reserved.tasks)
	})
}

// Workers with any number of handlers do all tasks, each once, while they reserve.
func TestWorkersReserve(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, of := range []struct{ workers, concurrency int }{{4, 1}, {2, 4}, {1, 20}} {
			t.Run(fmt.Sprint(of), func(t *testing.T) {
				db, config := database(t, s)
				q := newQueue(t, openConfig(t, config), Options{})
				random := mysqltest.Random(t)
				var mu sync.Mutex
				did := map[uint64]int{}
				for range of.workers {
					work(t, q, WorkerOptions{Concurrency: of.concurrency}, func(_ context.Context, task Task) error {
						if of.concurrency > 1 {
							<-time.After(time.Duration(random.Int64N(int64(1500 * time.Microsecond)))) // so that some are free while others are not
						}
						mu.Lock()
						defer mu.Unlock()
						did[task.ID]++
						return nil
					})
				}
				entered := mysqltest.Many(200, 1000, 2000)
				mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_task (queue, payload) WITH RECURSIVE n AS"+
					" (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 1000) SELECT 'mail', a.i FROM n a, (SELECT 1 FROM n LIMIT 2) b LIMIT ?", entered)
				q.Notify(t.Context())
				most := 0
				require.Eventually(t, func() bool {
					most = max(most, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state = 'ready' AND owner LIKE '~%'"))
					return inState(t, db, stateDone) == entered
				}, 10*patience, 5*tick, "tasks are left")
				t.Logf("%d reserved at once", most) // none where the machine is too busy for a few claims in 50 ms
				mu.Lock()
				defer mu.Unlock()
				assert.Len(t, did, entered)
				for id, n := range did {
					assert.Equal(t, 1, n, id)
				}
			})
		}
	})
}
