package queue

import (
	"context"
	"database/sql"
	"errors"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// outcome is the result of a claim.
type outcome struct {
	held *held
	kind outcomeKind
	text string        // last_error
	err  error         // the handler's error, of which text is the beginning
	wait time.Duration // before the next attempt
}

// freesKey reports whether the outcome ends a task that has a unique key.
func (o outcome) freesKey() bool {
	return o.kind == wasCancelled || o.held.task.Unique != "" && (o.kind == wasDone || o.kind == wasFatal)
}

type outcomeKind int

const (
	wasDone      outcomeKind = iota
	wasFailed                // tried again
	wasFatal                 // dead
	wasReleased              // never begun: it counts as no attempt
	wasCancelled             // the claim on a cancelled task is given up
)

// byAttempt groups ids by their number of attempts. Mostly all have the same number, so that one statement suffices.
type byAttempt map[int][]uint64

func (b byAttempt) add(t Task) { b[t.Attempt] = append(b[t.Attempt], t.ID) }

// are returns conditions. A task in the state, with its number of attempts, meets exactly one of them.
func (b byAttempt) are(state string) (conditions []string) {
	for _, attempt := range slices.Sorted(maps.Keys(b)) {
		conditions = append(conditions, among(b[attempt])+" AND attempts = "+strconv.Itoa(attempt)+" AND state = '"+state+"'")
	}
	return conditions
}

// each calls f with the conditions of claimed.
func (b byAttempt) each(f func(where string)) {
	for _, condition := range b.claimed() {
		f(" WHERE " + condition)
	}
}

// claimed returns conditions. Each of these claims meets one of them, unless its task was cancelled.
func (b byAttempt) claimed() []string {
	conditions := b.are(stateInProgress)
	for i := range conditions {
		conditions[i] += " AND claim_order = 0"
	}
	return conditions
}

// settle adds the statements that store outcomes. An outcome that comes too late, when another worker has
// the claim, changes nothing. Tasks that are done share a statement.
func (l *store) settle(p *packet, outcomes []outcome) {
	update := func(statement string, args ...any) { p.add(nil, statement, args...) }
	done, released, cancelled := byAttempt{}, byAttempt{}, byAttempt{}
	var unique []uint64 // ended tasks that may have a unique key
	for _, o := range outcomes {
		switch o.kind {
		case wasDone:
			done.add(o.held.task)
		case wasReleased:
			released.add(o.held.task)
		case wasCancelled:
			cancelled.add(o.held.task)
		}
		if o.freesKey() {
			unique = append(unique, o.held.task.ID)
		}
	}
	done.each(func(where string) {
		if l.discard {
			from := "DELETE t FROM " + schema.TaskTable + " t" + byID
			if len(unique) > 0 {
				from = "DELETE t, k FROM " + schema.TaskTable + " t" + byID + " LEFT JOIN " + itsKey
			}
			update(from + where)
			return
		}
		update("UPDATE " + schema.TaskTable + byID + " SET state = 'done', state_at = UTC_TIMESTAMP(6), last_error = NULL" + where)
	})
	released.each(func(where string) {
		update("UPDATE " + schema.TaskTable + byID + " SET state = 'ready', claim_order = priority, state_at = " + noTime + ", owner = ''" + where)
	})
	for _, condition := range cancelled.are(stateInProgress) {
		update("UPDATE " + schema.TaskTable + byID + " SET " + giveUpSet + " WHERE " + condition + " AND claim_order > 0")
	}
	for _, o := range outcomes {
		one := byAttempt{}
		one.add(o.held.task)
		switch o.kind {
		case wasFailed:
			one.each(func(where string) {
				update("UPDATE "+schema.TaskTable+byID+" SET state = 'failed', retries = retries - (retries > 0), last_error = ?,"+
					" state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"+where, o.text, o.wait.Microseconds())
			})
		case wasFatal:
			one.each(func(where string) {
				update("UPDATE "+schema.TaskTable+byID+" SET state = 'dead', state_at = UTC_TIMESTAMP(6), last_error = ?"+where, o.text)
			})
		}
	}
	if len(unique) > 0 {
		update(freeKeys(unique))
	}
}

// lateOf returns the outcomes that really came too late. If a handler has finished its task
// itself (FinishTx), or the answer to a commit was lost, the outcome was already stored.
func (l *store) lateOf(ctx context.Context, outcomes []outcome) (late []Task, err error) {
	type now struct {
		attempts int
		lapsed   bool // its claim has lapsed, and no worker has it
	}
	there := map[uint64]now{}
	ids := make([]uint64, len(outcomes))
	for i, o := range outcomes {
		ids[i] = o.held.task.ID
	}
	err = l.do(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var p packet
		p.add(func(rows *sql.Rows) error {
			var id uint64
			var n now
			if err := rows.Scan(&id, &n.attempts, &n.lapsed); err != nil {
				return err
			}
			there[id] = n
			return nil
		}, "SELECT id, attempts, state = 'ready' OR state = 'failed' AND owner = '' FROM "+schema.TaskTable+byID+" WHERE "+among(ids))
		return p.send(ctx, conn)
	})
	for _, o := range outcomes {
		n, is := there[o.held.task.ID]
		if is && (n.attempts != o.held.task.Attempt || n.lapsed && o.kind != wasReleased) {
			late = append(late, o.held.task)
		}
	}
	return late, err
}

// renew makes the claims hold for another visibility timeout, and returns those that are lost. locked are those that hold no longer than
// before, because another transaction, such as that of FinishTx, has their rows locked. started is when the renewal began.
func (l *store) renew(ctx context.Context, tasks []Task) (lost, locked []Task, started time.Time, err error) {
	ids := idsOf(tasks)
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		free := ids
		lost, locked = nil, nil
		var held []Task
		var first, p packet
		first.add(nil, "START TRANSACTION")
		if l.skips {
			free = nil
			first.add(readIDs(&free), "SELECT id FROM "+schema.TaskTable+byID+" WHERE "+among(ids)+" FOR UPDATE SKIP LOCKED")
		}
		if err := first.send(ctx, conn); err != nil {
			return err
		}
		claims := byAttempt{}
		for _, t := range tasks {
			if slices.Contains(free, t.ID) {
				claims.add(t)
			}
		}
		for _, condition := range claims.are(stateInProgress) { // also cancelled tasks, as long as their handlers run
			p.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE "+condition,
				l.visibility.Microseconds())
		}
		p.add(readClaims(&held), "SELECT id, attempts FROM "+schema.TaskTable+byID+" WHERE "+among(ids)+" AND state = 'in progress' AND "+isOurs,
			l.owner, l.owner+"/", l.owner+"/") // after a failover that lost the claim, another worker may have made the same one
		p.add(nil, "COMMIT")
		started = time.Now()
		if err := p.send(ctx, conn); err != nil {
			return err
		}
		has := claimsOf(held)
		for _, t := range tasks {
			switch {
			case !has[claim{t.ID, t.Attempt}]:
				lost = append(lost, t)
			case !slices.Contains(free, t.ID):
				locked = append(locked, t)
			}
		}
		return nil
	})
	return lost, locked, started, err
}

// abandoned gives back the tasks that this owner has claimed and does not know of, because the answer
// to the claim was lost with a session. some reports whether there were any.
func (l *store) abandoned(ctx context.Context, known []Task) (some bool, err error) {
	knows := claimsOf(known)
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var claimed []Task
		unknown := byAttempt{}
		var first, second packet
		first.add(readClaims(&claimed), "SELECT id, attempts FROM "+schema.TaskTable+forceClaim+
			" WHERE queue = ? AND state = 'in progress' AND claim_order = 0 AND "+isOurs, l.queue, l.owner, l.owner+"/", l.owner+"/")
		if err := first.send(ctx, conn); err != nil {
			return err
		}
		for _, t := range claimed {
			if !knows[claim{t.ID, t.Attempt}] {
				unknown.add(t)
			}
		}
		if len(unknown) == 0 {
			return nil
		}
		some = true
		unknown.each(func(where string) {
			second.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state = 'ready', claim_order = priority, state_at = "+noTime+", owner = ''"+where)
		})
		return second.send(ctx, conn)
	})
	return some, err
}

// giveBackLate gives back the tasks of claims that had no answer and were committed afterwards.
func (d *dispatcher) giveBackLate(ctx context.Context) error {
	if !time.Now().Before(d.unanswered) {
		return nil
	}
	some, err := d.store.abandoned(ctx, d.pool.known())
	if some {
		d.queue.changed()
		d.empty = false
	}
	return err
}

// outcomeOf returns the outcome for a handler's error.
func (h *pool) outcomeOf(claim *held, err error) outcome {
	if err == nil {
		return outcome{held: claim, kind: wasDone}
	}
	o := failed(claim, err)
	if errors.Is(err, notify.ErrDead) {
		o.kind = wasFatal
	}
	if o.kind == wasFatal {
		return o
	}
	// WorkerOptions.Backoff says what this counts.
	o.wait = min(max(0, h.backoff(max(1, claim.task.Attempt-claim.task.Lapses))), maxDelay)
	return o
}

// lastError returns an error's text in its stored form, of at most 8 KiB; the column has 64 KiB.
func lastError(err error) string {
	const most = 8 << 10
	text := err.Error()
	return strings.ToValidUTF8(text[:min(len(text), most)], "\uFFFD")
}

// failed returns the outcome of an error for which Backoff gives no wait.
func failed(claim *held, err error) outcome {
	kind := wasFailed
	if claim.task.Retries <= 0 {
		kind = wasFatal
	}
	return outcome{held: claim, kind: kind, text: lastError(err), err: err, wait: time.Minute}
}
