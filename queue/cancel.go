package queue

import (
	"context"
	"database/sql"
	"slices"
	"strconv"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// A task that is cancelled while a worker has it stays in progress, with its unique key and its claim, until the worker has
// ended the handler and gives the claim up, or until the claim lapses. Its column claim_order stores what it becomes then. Its results
// change nothing any more. Therefore no other worker can have the task, or a task with the same key, while the handler still runs.
const (
	orderDead  = "1" // it was cancelled
	orderReady = "2" // it was cancelled, and then Retry was called for it
)

const isCancelled = "state = 'in progress' AND claim_order > 0"

// cancelSet is the SET of Cancel.
const cancelSet = "last_error = 'cancelled', claim_order = IF(state = 'in progress', " + orderDead + ", 0)," +
	" state_at = IF(state = 'in progress', state_at, UTC_TIMESTAMP(6)), state = IF(state = 'in progress', state, 'dead')"

// retrySet is the SET of Retry. Its argument is the number of retries.
const retrySet = "retries = ?, lapses = 0, unique_key = IF(state = 'dead', NULL, unique_key)," +
	" claim_order = IF(state = 'in progress', " + orderReady + ", priority), state_at = IF(state = 'in progress', state_at, " + noTime + ")," +
	" owner = IF(state = 'in progress', owner, ''), state = IF(state = 'in progress', state, 'ready')"

// giveUpSet ends the claim on a cancelled task. claim_order is the last column, because the others depend on it.
const giveUpSet = "state = IF(claim_order = " + orderDead + ", 'dead', 'ready'), state_at = IF(claim_order = " + orderDead + ", UTC_TIMESTAMP(6), " + noTime + ")," +
	" owner = IF(claim_order = " + orderDead + ", owner, ''), claim_order = IF(claim_order = " + orderDead + ", 0, priority)"

// cancels is the query that a worker polls for cancelled tasks. Its value changes with every task that is cancelled while a worker
// has it.
func cancels(queue string) core.Source {
	return core.Query("SELECT BIT_XOR(CRC32(CONCAT(id, ':', attempts))) FROM "+schema.TaskTable+forceClaim+
		" WHERE queue = ? AND "+isCancelled, queue).Of(schema.TaskTable, waiting.Insert)
}

// hearCancels signals the dispatcher when a task of the queue was cancelled, even while all its handlers are busy.
func (d *dispatcher) hearCancels(ctx context.Context, waiter core.Waiter) error {
	head, err := waiter.Head(ctx)
	for err == nil {
		poke(d.cancels)
		var now core.Head
		for now = head; err == nil && now == head; {
			now, err = waiter.Wait(ctx, head, waitBound)
		}
		head = now
	}
	return err
}

// giveUp ends the handlers of this worker's cancelled tasks, and gives up the claims on those that have no handler.
func (d *dispatcher) giveUp(ctx context.Context) error {
	tasks, err := d.store.cancelled(ctx)
	if err != nil || len(tasks) == 0 {
		return err
	}
	return d.store.giveUp(ctx, d.pool.cancel(tasks), d.queue.changed)
}

// isOurs is the condition that a worker has claimed a task, whose owner is the worker's name, or begins with it and a slash
// (roundByUpdate). It is no LIKE, which has no escape character if sql_mode has NO_BACKSLASH_ESCAPES.
const isOurs = "(owner = ? OR LEFT(owner, CHAR_LENGTH(?)) = ?)"

// cancelled returns the cancelled tasks that this worker has.
func (l *store) cancelled(ctx context.Context) (tasks []Task, err error) {
	err = l.do(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		tasks = nil
		var p packet
		p.add(readClaims(&tasks), "SELECT id, attempts FROM "+schema.TaskTable+forceClaim+
			" WHERE queue = ? AND "+isCancelled+" AND "+isOurs, l.queue, l.owner, l.owner+"/", l.owner+"/")
		return p.send(ctx, conn)
	})
	return tasks, err
}

func readClaims(tasks *[]Task) func(rows *sql.Rows) error {
	return func(rows *sql.Rows) error {
		var t Task
		if err := rows.Scan(&t.ID, &t.Attempt); err != nil {
			return err
		}
		*tasks = append(*tasks, t)
		return nil
	}
}

// claim identifies a claim: it is lost when another attempt of the task begins.
type claim struct {
	id      uint64
	attempt int
}

func claimsOf(tasks []Task) map[claim]bool {
	claims := map[claim]bool{}
	for _, t := range tasks {
		claims[claim{t.ID, t.Attempt}] = true
	}
	return claims
}

// giveUp gives up the claims on cancelled tasks, and calls changed if there are any. Those whose keys are locked lapse, and endLapsed
// ends them.
func (l *store) giveUp(ctx context.Context, tasks []Task, changed func()) error {
	if len(tasks) == 0 {
		return nil
	}
	err := l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
			return err
		}
		_, err := l.endCancelled(ctx, conn, tasks)
		return err
	})
	if err == nil {
		changed()
	}
	return err
}

func cancelledOutcomes(tasks []Task) []outcome {
	outcomes := make([]outcome, len(tasks))
	for i, t := range tasks {
		outcomes[i] = outcome{held: &held{task: t}, kind: wasCancelled}
	}
	return outcomes
}

// endLapsed ends the lapsed claims on cancelled tasks, whose workers have vanished. It returns how many tasks it ended.
func (l *store) endLapsed(ctx context.Context) (ended int, err error) {
	query := "SELECT id, attempts FROM " + schema.TaskTable + forceClaim + " WHERE queue = ? AND " + isCancelled +
		" AND state_at <= UTC_TIMESTAMP(6) LIMIT " + strconv.Itoa(promoted) + " FOR UPDATE"
	if l.skip {
		query += " SKIP LOCKED"
	}
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		var tasks []Task
		var p packet
		p.add(nil, "START TRANSACTION")
		p.add(readClaims(&tasks), query, l.queue)
		if err := p.send(ctx, conn); err != nil {
			return err
		}
		ended, err = l.endCancelled(ctx, conn, tasks)
		return err
	})
	return ended, err
}

// endCancelled ends those of the cancelled tasks whose keys are not locked, commits, and returns how many it ended.
func (l *store) endCancelled(ctx context.Context, conn *sqlx.Conn, tasks []Task) (ended int, err error) {
	free, err := l.unlocked(ctx, conn, idsOf(tasks))
	if err != nil {
		return 0, err
	}
	tasks = slices.DeleteFunc(slices.Clone(tasks), func(t Task) bool { return !slices.Contains(free, t.ID) })
	var p packet
	l.settle(&p, cancelledOutcomes(tasks))
	p.add(nil, "COMMIT")
	return len(tasks), p.send(ctx, conn)
}

// cancel ends the handlers of cancelled tasks. It returns the tasks without a handler, because theirs ended before.
func (h *pool) cancel(tasks []Task) (free []Task) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range tasks {
		claim := h.held[t.ID]
		switch {
		case claim == nil || claim.task.Attempt != t.Attempt:
			free = append(free, t)
		case !claim.cancelled:
			claim.cancelled = true
			if claim.begun && !claim.settled {
				claim.cancel(claim.lostError())
			}
		}
	}
	if len(h.outcomes) == 0 {
		h.oldest = time.Now()
	}
	var waiting []*held
	for _, claim := range h.waiting {
		if claim.cancelled {
			claim.settled = true
			h.over(claim)
			h.outcomes = append(h.outcomes, outcome{held: claim, kind: wasCancelled})
		} else {
			waiting = append(waiting, claim)
		}
	}
	h.waiting = waiting
	for _, outcomes := range [][]outcome{h.outcomes, h.deferred} {
		for i, o := range outcomes {
			if o.held.cancelled {
				outcomes[i] = outcome{held: o.held, kind: wasCancelled}
			}
		}
	}
	return free
}
