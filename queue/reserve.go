package queue

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
)

// A busy worker that claims few tasks at a time reserves the next ones: it writes an expiry into their rows, and until then
// other reserving workers skip them. A worker that finds no other task may claim them anyway. But mostly no other
// worker tries, so that a claim needs no search and no transaction: one UPDATE by ids claims the next task, if it is still
// ready, and marks the last one as done. Workers then do a third more tasks than with a search for each (BenchmarkClaim).

const (
	// reserveBelow is the smallest batch at which a search is too cheap to be worth saving.
	reserveBelow = 16
	// reserveFor is how long tasks are reserved. A worker reserves about as many as it claims in this time, if that takes it at
	// least reserveFrom transactions.
	reserveFor, reserveFrom = scanEach, 8
	// reserveMost bounds the memory for the payloads of reserved tasks, of reservePayload bytes each. After a larger
	// payload, which the server has read without use, the worker reserves no task for reserveRest, and then few: the
	// number grows from reserveFrom until the next large payload.
	reserveMost, reservePayload, reserveRest = 256, 4 << 10, time.Second
)

// The owner of a reserved task is ~ and the expiry. An expiry far ahead does not count, in case the server's clock was set back.
const (
	reservedUntil = "CONCAT('~', UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND)"
	notReserved   = "owner NOT BETWEEN CONCAT('~', UTC_TIMESTAMP(6)) AND CONCAT('~', UTC_TIMESTAMP(6) + INTERVAL 1 MINUTE)"
)

// reservations are the reserved tasks of a worker.
type reservations struct {
	tasks []Task
	owner string    // their owner; a claim changes it, and so does a task that becomes ready again
	until time.Time // when they expire on the server
	rest  time.Time // until when nothing is reserved
	most  int       // the maximum number of the next reservation, if it is more than reserveFrom

	found int       // tasks that were claimed since then, always as many as were wanted
	since time.Time // when counting began
}

// count records a claim. A claim that found fewer tasks than wanted restarts the count, because the worker has time to search.
func (r *reservations) count(found, want int, now time.Time) {
	if r.found += found; found < want {
		r.found, r.since = 0, now
	}
}

// pace returns how many tasks to reserve for a worker that claims want tasks at a time. It returns 0 while its speed is not known,
// and if it has time to search.
func (r *reservations) pace(want int, now time.Time) int {
	took := max(now.Sub(r.since), time.Microsecond)
	if now.Before(r.rest) || r.found < reserveFrom*want && took < reserveFor {
		return 0
	}
	n := int(float64(r.found) * float64(reserveFor) / float64(took))
	r.found, r.since = 0, now
	if n < reserveFrom*want {
		return 0
	}
	return min(n, max(r.most, reserveFrom*want), reserveMost)
}

// claimReserved settles outcomes and claims reserved tasks, if there are any. If it claims fewer than wanted, the caller must
// search; if it claims none, it may or may not have settled the outcomes.
func (l *store) claimReserved(ctx context.Context, outcomes []outcome, want, begin int) (claimed []Task, started time.Time, err error) {
	if want == 0 || want >= reserveBelow || l.ordered {
		return nil, started, nil
	}
	r := &l.reserved
	if now := time.Now(); len(r.tasks) < want || !now.Before(r.until) {
		r.tasks = nil
		if n := r.pace(want, now); n > 0 {
			if err := l.reserve(ctx, n); err != nil {
				return nil, started, err
			}
			l.passed = Task{} // tasks that were not reserved may be before the cursor
		}
		if len(r.tasks) < want {
			return nil, started, nil
		}
	}
	next := l.chosen(r.tasks[:want], begin)
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		started = time.Now()
		all, err := l.claimThese(ctx, conn, outcomes, next)
		if err != nil {
			return err
		}
		if claimed = next; !all { // another worker has one of them, or an outcome came too late
			claimed, err = l.mine(ctx, conn, next)
		}
		return err
	})
	if err != nil {
		r.tasks = nil // another session may have locked one of them
		return nil, started, err
	}
	r.tasks = r.tasks[len(next):]
	return claimed, started, nil
}

// claimThese claims the tasks and stores the outcomes that are done without a unique key. It reports whether it changed all of
// them.
func (l *store) claimThese(ctx context.Context, conn *sqlx.Conn, outcomes []outcome, next []Task) (all bool, err error) {
	done, ready := byAttempt{}, byAttempt{}
	var others []outcome
	var ids []uint64
	for _, o := range outcomes {
		if l.discard || o.kind != wasDone || o.freesKey() {
			others = append(others, o)
			continue
		}
		done.add(o.held.task)
		ids = append(ids, o.held.task.ID)
	}
	for _, t := range next {
		ready.add(t)
		ids = append(ids, t.ID)
	}
	var conditions []string
	for _, condition := range ready.are(stateReady) {
		conditions = append(conditions, condition+" AND owner = ?")
	}
	args := []any{l.owner, l.visibility.Microseconds()}
	for range conditions {
		args = append(args, l.reserved.owner)
	}
	changes := among(ids) + " AND (" + strings.Join(append(conditions, done.claimed()...), " OR ") + ")"
	const update = "UPDATE " + schema.TaskTable + byID + " SET claim_order = 0, attempts = attempts + (state = 'ready'), owner = ?," +
		" state_at = UTC_TIMESTAMP(6) + INTERVAL IF(state = 'ready', ?, 0) MICROSECOND, last_error = IF(state = 'ready', last_error, NULL)," +
		" state = IF(state = 'ready', 'in progress', 'done') WHERE "
	var p packet
	if len(others) == 0 {
		p.add(nil, update+changes, args...)
		n, err := p.exec(ctx, conn)
		return n == int64(len(ids)), err
	}
	changed := 0
	p.add(nil, "START TRANSACTION")
	l.settle(&p, others)
	p.add(nil, update+changes, args...)
	p.add(func(rows *sql.Rows) error { return rows.Scan(&changed) }, "SELECT ROW_COUNT()")
	p.add(nil, "COMMIT")
	err = p.send(ctx, conn)
	return changed == len(ids), err
}

// errUnknown is not an error of the server. It ends the session, and afterwards the worker gives back the tasks that it has claimed
// and does not know of.
var errUnknown = errors.New("the server did not report which tasks were claimed")

// mine returns those of the tasks that this worker has claimed.
func (l *store) mine(ctx context.Context, conn *sqlx.Conn, tasks []Task) ([]Task, error) {
	var held []Task
	var p packet
	p.add(readClaims(&held), "SELECT id, attempts FROM "+schema.TaskTable+byID+" WHERE "+among(idsOf(tasks))+" AND state = 'in progress' AND owner = ?", l.owner)
	if err := p.send(ctx, conn); err != nil {
		return nil, fmt.Errorf("%w: %s", errUnknown, err.Error())
	}
	has := claimsOf(held)
	return slices.DeleteFunc(slices.Clone(tasks), func(t Task) bool { return !has[claim{t.ID, t.Attempt + 1}] }), nil
}

// reserve reserves the first n tasks that are not reserved. It stops before a task with a large payload, which a search reads, and
// before a task that has lapsed, which a search claims alone. It chooses the tasks before it locks them, because MariaDB would keep
// the locks of all rows that it has skipped.
func (l *store) reserve(ctx context.Context, n int) error {
	return l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var owner string
		var tasks []Task
		var first, second packet
		first.add(nil, "START TRANSACTION")
		first.add(func(rows *sql.Rows) error { return rows.Scan(&owner) }, "SELECT "+reservedUntil, reserveFor.Microseconds())
		first.add(func(rows *sql.Rows) error { return l.scan(rows, &tasks) },
			"SELECT t.id, attempts, retries, lapses, priority, created_at, unique_key, IF(OCTET_LENGTH(payload) > ?, NULL, payload)"+
				" FROM (SELECT id FROM "+schema.TaskTable+forceClaim+" WHERE queue = ? AND state = 'ready' AND "+notReserved+
				" ORDER BY claim_order, state_at, id LIMIT ?) chosen STRAIGHT_JOIN "+schema.TaskTable+" t"+byID+" ON t.id = chosen.id"+
				" WHERE t.state = 'ready' AND t."+notReserved+" LIMIT ? FOR UPDATE SKIP LOCKED",
			reservePayload, l.queue, 4*n, n) // other workers may be about to reserve the first ones
		if err := first.send(ctx, conn); err != nil {
			return err
		}
		slices.SortFunc(tasks, func(a, b Task) int { return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.ID, b.ID)) })
		rest, most := time.Time{}, 2*n
		if large := slices.IndexFunc(tasks, func(t Task) bool { return t.Payload == nil || t.Lapses > 0 }); large >= 0 {
			tasks, rest, most = tasks[:large], time.Now().Add(reserveRest), 0
		}
		if len(tasks) > 0 {
			second.add(nil, "UPDATE "+schema.TaskTable+byID+" SET owner = ? WHERE "+among(idsOf(tasks))+" AND state = 'ready'", owner)
		}
		second.add(nil, "COMMIT")
		if err := second.send(ctx, conn); err != nil {
			return err
		}
		r := &l.reserved
		r.tasks, r.owner, r.until, r.rest, r.most = tasks, owner, time.Now().Add(reserveFor), rest, most
		return nil
	})
}
