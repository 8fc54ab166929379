package queue

import (
	"context"
	"database/sql"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
)

// promoted is the maximum number of tasks that one transaction makes ready.
const promoted = 500

// errLapsed is the last_error of a task whose worker vanished.
const errLapsed = "the worker neither finished it nor renewed its claim: it vanished, or could not reach the server"

// view is the result of a poll.
type view struct {
	ready bool          // there is a task to claim, or another worker is about to claim it
	due   time.Duration // until the next task falls due, by the server's clock; negative if it is overdue
	any   bool          // a task will fall due by itself
	// recurs is true if there are recurring tasks, cancels if there are cancelled tasks whose claims are not given up.
	recurs, cancels bool
}

// dueColumn returns SQL for the time until the first task in a state falls due, in microseconds.
func dueColumn(state string) string {
	return "(SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN(state_at)) FROM " + schema.TaskTable + forceClaim +
		" WHERE queue = ? AND state = '" + state + "' AND claim_order = 0)"
}

var pollQuery = "SELECT EXISTS (SELECT 1 FROM " + schema.TaskTable + forceClaim + " WHERE queue = ? AND state = 'ready'), " +
	dueColumn(stateScheduled) + ", " + dueColumn(stateFailed) + ", " + dueColumn(stateInProgress) + ", " +
	"(SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN(state_at)) FROM " + schema.TaskTable + forceClaim + " WHERE queue = ? AND " + isCancelled + "), " +
	"(SELECT TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), MIN(next_at)) FROM " + schema.ScheduleTable + " WHERE queue = ?"

// poll reads what is ready and when the next task falls due, in one statement that locks nothing.
func (l *store) poll(ctx context.Context) (v view, err error) {
	err = l.do(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var in [5]sql.NullInt64
		known, args := l.known()
		row := conn.QueryRowxContext(ctx, pollQuery+known+")", append([]any{l.queue, l.queue, l.queue, l.queue, l.queue, l.queue}, args...)...)
		if err := row.Scan(&v.ready, &in[0], &in[1], &in[2], &in[3], &in[4]); err != nil {
			return err
		}
		if l.ordered { // a ready task must wait for a task that is not settled
			v.ready = v.ready && !in[1].Valid && !in[2].Valid && !in[3].Valid
		}
		v.cancels, v.recurs = in[3].Valid, in[4].Valid
		for _, micros := range in {
			const most = int64(maxDelay / time.Microsecond) // At may be thousands of years ahead; a Duration holds 292
			due := time.Duration(min(max(micros.Int64, -most), most)) * time.Microsecond
			if micros.Valid && (!v.any || due < v.due) {
				v.any, v.due = true, due
			}
		}
		return nil
	})
	return v, err
}

// promote makes tasks ready that have fallen due, and ends the claims of workers that let them
// lapse: these tasks come back after a wait, or are dead. It returns how many tasks became ready.
func (l *store) promote(ctx context.Context) (ready int, err error) {
	for {
		n, moved, err := l.promoteSome(ctx)
		ready += n
		if err != nil || moved < promoted {
			return ready, err
		}
	}
}

func (l *store) promoteSome(ctx context.Context) (ready, moved int, err error) {
	query := "SELECT id, state = 'in progress', retries, lapses FROM " + schema.TaskTable + forceClaim +
		" WHERE queue = ? AND state IN ('scheduled', 'failed', 'in progress') AND claim_order = 0 AND state_at <= UTC_TIMESTAMP(6)" +
		" LIMIT " + strconv.Itoa(promoted) + " FOR UPDATE"
	if l.skip {
		query += " SKIP LOCKED"
	}
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var due, dead []uint64
		var lapsed []Task
		var first, second packet
		first.add(nil, "START TRANSACTION")
		first.add(func(rows *sql.Rows) error {
			var t Task
			var claimed bool
			if err := rows.Scan(&t.ID, &claimed, &t.Retries, &t.Lapses); err != nil {
				return err
			}
			switch {
			case !claimed:
				due = append(due, t.ID)
			case t.Retries > 0 && t.Lapses < l.lapses:
				lapsed = append(lapsed, t)
			default:
				dead = append(dead, t.ID)
			}
			return nil
		}, query, l.queue)
		if err := first.send(ctx, conn); err != nil {
			return err
		}
		dead, err := l.unlocked(ctx, conn, dead)
		if err != nil {
			return err
		}
		if len(due) > 0 {
			second.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state = 'ready', claim_order = priority, state_at = "+noTime+" WHERE "+among(due))
		}
		if len(lapsed) > 0 {
			second.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state = 'failed', owner = '', lapses = lapses + 1, last_error = ?,"+
				" state_at = UTC_TIMESTAMP(6) + INTERVAL "+lapsedWaits(lapsed)+" MICROSECOND WHERE "+among(idsOf(lapsed)), errLapsed)
		}
		if len(dead) > 0 {
			second.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state = 'dead', lapses = lapses + 1, state_at = UTC_TIMESTAMP(6),"+
				" last_error = ? WHERE "+among(dead), errLapsed)
			second.add(nil, freeKeys(dead))
		}
		second.add(nil, "COMMIT")
		ready = len(due)
		moved = ready + len(lapsed) + len(dead)
		if err := second.send(ctx, conn); err != nil {
			return err
		}
		for _, id := range dead {
			l.log.WarnContext(ctx, "a task is dead, because its worker vanished and it has no retry or lapse left", "task", id)
		}
		return nil
	})
	if err != nil {
		return 0, 0, err
	}
	return ready, moved, nil
}
