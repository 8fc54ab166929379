package queue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
)

// A task may kill the process that handles it, and so end the claims on all tasks of the process. The server
// does not know which of these tasks a handler had begun, because a statement at every start would cost as much as a
// claim. Three rules make up for that:
//
//   - A lapse takes no retry. A task comes back after a jittered wait, at most WorkerOptions.Lapses times. If no handler had begun
//     the task, its first lapse therefore costs it only a wait.
//   - A task that has lapsed is claimed alone, and a task without a retry left only together with others that begin at
//     once: in both cases only when a handler is free for it. Therefore a handler had begun the task at every further lapse, and at
//     the lapse that makes a task without a retry left dead.
//   - A task that has lapsed twice is also handled alone: its worker begins it when it has no other task, and
//     begins no other one meanwhile. Therefore a task that kills its workers takes other tasks with it at most twice. While the
//     worker waits until it has no other task it claims nothing, but only for a bounded time (dispatcher.postpone).

// aloneFrom is the number of lapses from which on a worker handles a task alone. It is not 1, because after the kill of a worker with
// a hundred long tasks all of them would be handled one after the other.
const aloneFrom = 2

// alone reports whether a worker must handle the task alone.
func (t Task) alone() bool { return t.Lapses >= aloneFrom }

// chosen returns the first of the found tasks that may be claimed together. begin is how many of
// them handlers begin at once.
func (l *store) chosen(found []Task, begin int) []Task {
	for i, t := range found {
		n := i
		switch {
		case i == 0 && t.alone() && l.busy:
			l.refused = t
		case i == 0 && t.Lapses > 0 && begin > 0:
			n = 1
		case t.Lapses > 0 || t.Retries <= 0 && i >= begin:
		default:
			continue
		}
		l.cut = l.cut || n < len(found)
		return found[:n]
	}
	return found
}

// asksNext decides how many tasks the next claim asks for. After a claim that met tasks which are claimed only when a
// handler is free for them, it asks for as many as can begin at once, because a larger claim would read others and leave
// them. After claims that met none the number doubles.
func (l *store) asksNext(claimed []Task, begin int) {
	rare := func(t Task) bool { return t.Lapses > 0 || t.Retries <= 0 }
	if l.cut || slices.ContainsFunc(claimed, rare) {
		l.most = begin
		return
	}
	if l.most *= 2; l.most > mostAtOnce {
		l.most = 0
	}
}

// firstPatience is how long a worker at first claims nothing so that it can handle a task alone.
func firstPatience(visibility time.Duration) time.Duration { return min(visibility, 30*time.Second) }

// postpone leaves a ready task to this worker for a while, without a claim, so that it does not lapse if the worker vanishes
// meanwhile. It reports whether the task was still ready.
func (l *store) postpone(ctx context.Context, t Task, wait time.Duration) (was bool, err error) {
	return l.changeOne(ctx, "UPDATE "+schema.TaskTable+byID+" SET state = 'failed', claim_order = 0, state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"+
		" WHERE id = ? AND attempts = ? AND state = 'ready'", wait.Microseconds(), t.ID, t.Attempt)
}

// claimPostponed claims a postponed task, and reports whether it could: after the wait has
// passed, another worker may have it.
func (l *store) claimPostponed(ctx context.Context, t Task) (was bool, err error) {
	return l.changeOne(ctx, "UPDATE "+schema.TaskTable+byID+" SET state = 'in progress', claim_order = 0, attempts = attempts + 1, owner = ?,"+
		" state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE id = ? AND attempts = ? AND retries = ? AND lapses = ? AND state IN ('ready', 'failed')",
		l.owner, l.visibility.Microseconds(), t.ID, t.Attempt, t.Retries, t.Lapses)
}

// changeOne runs a statement that changes one row, and reports whether it did.
func (l *store) changeOne(ctx context.Context, query string, args ...any) (changed bool, err error) {
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		result, err := conn.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		changed = n == 1
		return err
	})
	return changed, err
}

// lapsedWaits returns SQL for the wait of each task after its claim has lapsed, in microseconds.
func lapsedWaits(lapsed []Task) string {
	var waits strings.Builder
	waits.WriteString("CASE id")
	for _, t := range lapsed {
		fmt.Fprintf(&waits, " WHEN %d THEN %d", t.ID, defaultBackoff(t.Lapses+1).Microseconds())
	}
	return waits.String() + " END"
}
