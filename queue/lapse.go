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

// A task may end the process that handles it, and with it the claims on all tasks that the process has. The server
// does not know which of these tasks a handler had begun, because a statement for every start would cost as much as a
// claim. Three rules make up for that:
//
//   - A lapse takes no retry. A task comes back after a jittered wait, WorkerOptions.Lapses times at most. So the first
//     lapse of a task may be one of a claim that no handler had begun: it costs the task a wait.
//   - A task that has lapsed is claimed alone, and a task without a retry left in company with others that begin at
//     once: in both cases only when a handler is free for it. So every further lapse, and the one that a task without a
//     retry left dies of, is one of a handler that had begun.
//   - A task that has lapsed twice is handled alone, too: its worker begins it when it has nothing else in hand, and
//     begins nothing else meanwhile. So a task that kills its workers takes others with it twice at most. While the worker
//     waits for what it has in hand it claims nothing, but not without end (dispatcher.postpone).

// aloneFrom is how many lapses make a worker handle a task alone. It is not 1, because after the kill of a worker with a
// hundred long tasks all of them would be handled one after the other.
const aloneFrom = 2

// alone reports whether a worker handles the task alone.
func (t Task) alone() bool { return t.Lapses >= aloneFrom }

// chosen are those of the tasks that were found that may be claimed together, the first of them; begin is how many of
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
// handler is free for them, it asks for as many as begin at once, because a larger claim would read the others and leave
// them. While claims meet none the number doubles.
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

// firstPatience is how long a worker claims nothing at first, so that it can handle a task alone.
func firstPatience(visibility time.Duration) time.Duration { return min(visibility, 30*time.Second) }

// postpone leaves a task that is ready to this worker for a while, without a claim: if the worker vanishes meanwhile,
// that is no lapse. It reports whether the task was ready still.
func (l *store) postpone(ctx context.Context, t Task, wait time.Duration) (was bool, err error) {
	return l.changeOne(ctx, "UPDATE "+schema.TaskTable+byID+" SET state = 'failed', claim_order = 0, state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"+
		" WHERE id = ? AND attempts = ? AND state = 'ready'", wait.Microseconds(), t.ID, t.Attempt)
}

// claimPostponed claims a task that was postponed, and reports whether it could: another worker may have it, when the
// wait has passed.
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

// lapsedWaits is how long each of the tasks waits after its claim has lapsed, as an expression in microseconds.
func lapsedWaits(lapsed []Task) string {
	var waits strings.Builder
	waits.WriteString("CASE id")
	for _, t := range lapsed {
		fmt.Fprintf(&waits, " WHEN %d THEN %d", t.ID, defaultBackoff(t.Lapses+1).Microseconds())
	}
	return waits.String() + " END"
}
