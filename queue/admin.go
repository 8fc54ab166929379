package queue

import (
	"context"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
)

// Filter selects tasks.
type Filter struct {
	States []string // values of Task.State; empty means all
	IDs    []uint64 // nil means all, and an empty slice none
	// After selects the tasks with larger ids, for pages of List. Limit is the maximum number of tasks of
	// List; 0 means 100. Retry and Cancel refuse both.
	After uint64
	Limit int
	// NoPayload leaves the payloads unread.
	NoPayload bool

	cancelled bool // selects cancelled tasks in progress, too, whatever States are
}

// where returns the filter as an SQL condition. It checks the states, and ids are numbers, so no input can change the SQL.
func (q *Queue) where(f Filter) (where string, args []any, err error) {
	where, args = " WHERE queue = ?", []any{q.name}
	if len(f.States) > 0 {
		for _, s := range f.States {
			if !slices.Contains(states, s) {
				return "", nil, optionsf("State %q: one of %q", s, states)
			}
			args = append(args, s)
		}
		in := "state IN (?" + strings.Repeat(", ?", len(f.States)-1) + ")"
		if f.cancelled {
			in = "(" + in + " OR " + isCancelled + ")"
		}
		where += " AND " + in
	}
	switch {
	case f.IDs == nil:
	case len(f.IDs) == 0:
		where += " AND FALSE"
	default:
		where += " AND " + among(f.IDs)
	}
	return where, args, nil
}

// List returns the queue's tasks that the filter selects, in the order of their ids. With the state "dead" it
// returns the dead letters.
func (q *Queue) List(ctx context.Context, f Filter) ([]Task, error) {
	if f.Limit < 0 {
		return nil, optionsf("Limit %d: 0 or more", f.Limit)
	}
	if _, err := q.Ordered(ctx); err != nil {
		return nil, err
	}
	where, args, err := q.where(f)
	if err != nil {
		return nil, err
	}
	if f.Limit == 0 {
		f.Limit = 100
	}
	payload := "payload"
	if f.NoPayload {
		payload = "''"
	}
	rows, err := q.db.Pool().QueryContext(ctx, "SELECT id, state, CAST(state_at AS CHAR), priority, attempts, retries,"+
		" COALESCE(unique_key, ''), IF(owner LIKE '~%', '', owner), lapses, CAST(UNIX_TIMESTAMP(created_at) * 1000000 AS SIGNED), COALESCE(last_error, ''), "+
		payload+" FROM "+schema.TaskTable+where+" AND id > ? ORDER BY id LIMIT ?", append(args, f.After, f.Limit)...)
	if err != nil {
		return nil, q.error("list", err)
	}
	defer rows.Close()
	var all []Task
	for rows.Next() {
		i := Task{Queue: q.name}
		var at string
		var created int64
		if err := rows.Scan(&i.ID, &i.State, &at, &i.Priority, &i.Attempt, &i.Retries, &i.Unique, &i.Owner, &i.Lapses, &created, &i.LastError, &i.Payload); err != nil {
			return nil, q.error("list", err)
		}
		i.CreatedAt = time.UnixMicro(created).UTC()
		if i.State != stateReady {
			if i.At, err = parseTime(at); err != nil {
				return nil, q.error("list", err)
			}
		}
		all = append(all, i)
	}
	return all, q.error("list", rows.Err())
}

// Counts returns how many tasks the queue has in each state.
func (q *Queue) Counts(ctx context.Context) (map[string]int, error) {
	if _, err := q.Ordered(ctx); err != nil {
		return nil, err
	}
	rows, err := q.db.Pool().QueryContext(ctx, "SELECT state, COUNT(*) FROM "+schema.TaskTable+forceClaim+" WHERE queue = ? GROUP BY state", q.name)
	if err != nil {
		return nil, q.error("count", err)
	}
	defer rows.Close()
	counts := make(map[string]int)
	for rows.Next() {
		var s string
		var n int
		if err := rows.Scan(&s, &n); err != nil {
			return nil, q.error("count", err)
		}
		counts[s] = n
	}
	return counts, q.error("count", rows.Err())
}

// Retry makes dead tasks ready again, with this number of retries (0 means 5,
// -1 none) and a count of lapses of 0. It makes failed and scheduled tasks ready without further waiting. It
// returns how many tasks it changed. A filter without ids and states selects all dead tasks.
// A dead task has no unique key any more: it lost the key when it died, so
// that another task could have it. A task that was cancelled while a worker has it becomes ready when
// that worker has given it up (see Cancel).
func (q *Queue) Retry(ctx context.Context, f Filter, retries int) (n int, err error) {
	if retries < noRetries || retries > math.MaxInt32 {
		return 0, optionsf("%d retries: 0 or more, at most %d, or -1 for none", retries, math.MaxInt32)
	}
	if len(f.States) == 0 {
		f.States = []string{stateDead}
		if len(f.IDs) > 0 {
			f.States = []string{stateDead, stateFailed, stateScheduled}
		}
	}
	if slices.ContainsFunc(f.States, func(s string) bool { return s != stateDead && s != stateFailed && s != stateScheduled }) {
		return 0, optionsf("only tasks that are dead, failed or scheduled can be retried")
	}
	f.cancelled = slices.Contains(f.States, stateDead)
	n, err = q.change(ctx, "retry tasks of", f, false, retrySet, retriesOf(retries))
	if n > 0 {
		q.changed()
	}
	return n, err
}

// Cancel makes tasks dead that are not done, whatever retries they have left, and returns
// how many there were. The worker of a task in progress learns of it at once, or within a second
// if workers poll, and ends the handler's context with ErrClaimLost as the cause. The task
// stays in progress, and keeps its unique key and its place in an ordered queue, until the handler
// has returned or, if the worker has vanished, until its claim lapses. Then the task is dead, whatever the handler
// returns. A filter without ids and states is an error, and nothing is cancelled.
func (q *Queue) Cancel(ctx context.Context, f Filter) (n int, err error) {
	if len(f.States) == 0 {
		if len(f.IDs) == 0 {
			return 0, optionsf("Cancel without IDs and States: name the tasks")
		}
		f.States = []string{stateScheduled, stateReady, stateInProgress, stateFailed}
	}
	if slices.ContainsFunc(f.States, func(s string) bool { return s == stateDone || s == stateDead }) {
		return 0, optionsf("tasks that are done or dead can't be cancelled")
	}
	n, err = q.change(ctx, "cancel tasks of", f, true, cancelSet)
	if n > 0 { // workers may have some of them, and the next task of an ordered queue may be claimable now
		q.changed()
	}
	return n, err
}

// rowsAtOnce is the maximum number of rows that a transaction changes or deletes.
const rowsAtOnce = 500

// change sets columns of the tasks that the filter selects, in transactions of up to rowsAtOnce tasks. frees means that the tasks may
// lose their unique keys: a task with a key then has a transaction of its own.
func (q *Queue) change(ctx context.Context, what string, f Filter, frees bool, set string, args ...any) (n int, err error) {
	if f.After != 0 || f.Limit != 0 {
		return 0, optionsf("After and Limit are for List: give IDs to change only some of the tasks")
	}
	if _, err := q.Ordered(ctx); err != nil {
		return 0, err
	}
	where, condition, err := q.where(f)
	if err != nil {
		return 0, err
	}
	for after := uint64(0); ; {
		var ids []uint64
		err := q.db.Pool().SelectContext(ctx, &ids, "SELECT id FROM "+schema.TaskTable+where+" AND id > ? ORDER BY id LIMIT ?",
			append(slices.Clone(condition), after, rowsAtOnce)...)
		if err != nil || len(ids) == 0 {
			return n, q.error(what, err)
		}
		after = ids[len(ids)-1]
		var keyed []uint64
		if frees {
			err = q.db.Pool().SelectContext(ctx, &keyed, "SELECT id FROM "+schema.TaskTable+byID+" WHERE "+among(ids)+" AND unique_key IS NOT NULL ORDER BY id")
			if err != nil {
				return n, q.error(what, err)
			}
		}
		// A transaction may have a key locked. A task that waits for that holds no other's row.
		parts := [][]uint64{slices.DeleteFunc(ids, func(id uint64) bool { _, has := slices.BinarySearch(keyed, id); return has })}
		for _, id := range keyed {
			parts = append(parts, []uint64{id})
		}
		for i, part := range parts {
			if len(part) == 0 {
				continue
			}
			// Repeat the condition, because a worker may have changed the tasks since.
			err = server.Again(ctx, server.Retryable, func() error {
				changed, err := q.changeSome(ctx, part, i > 0, "SET "+set+where, slices.Concat(args, condition)...)
				n += changed
				return err
			})
			if err != nil {
				return n, q.error(what, err)
			}
		}
	}
}

// changeSome changes those of the tasks that meet the condition, in a transaction. If frees is set, those that are dead then lose their
// unique keys.
func (q *Queue) changeSome(ctx context.Context, ids []uint64, frees bool, set string, args ...any) (changed int, err error) {
	tx, err := q.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	result, err := tx.ExecContext(ctx, "UPDATE "+schema.TaskTable+byID+" "+set+" AND "+among(ids), args...)
	if err != nil {
		return 0, err
	}
	n, err := result.RowsAffected()
	if err != nil {
		return 0, err
	}
	if frees {
		if _, err := tx.ExecContext(ctx, freeKeys(ids)); err != nil {
			return 0, err
		}
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return int(n), nil
}

// execute runs a statement, again after lock conflicts, and returns how many rows it
// has changed.
func (q *Queue) execute(ctx context.Context, query string, args ...any) (changed int, err error) {
	err = server.Again(ctx, server.Retryable, func() error {
		result, err := q.db.Pool().ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		n, err := result.RowsAffected()
		changed = int(n)
		return err
	})
	return changed, err
}

// prunePause is how long Prune waits between two batches, so that other statements get their turn.
const prunePause = 10 * time.Millisecond

// Prune deletes tasks that have been in one of the states, "done" or "dead", for longer than olderThan by the server's clock, and
// returns how many. Without states it deletes done tasks; olderThan 0 means tasks of any age. It works in small transactions, in the
// order of ids, and also deletes the unique keys of tasks that no longer exist. It may run at the same time as everything else, and
// may be interrupted at any time.
func (q *Queue) Prune(ctx context.Context, olderThan time.Duration, states ...string) (deleted int, err error) {
	if olderThan < 0 || olderThan > maxDelay {
		return 0, optionsf("older than %v: from 0 to 100 years", olderThan)
	}
	if len(states) == 0 {
		states = []string{stateDone}
	}
	if slices.ContainsFunc(states, func(s string) bool { return s != stateDone && s != stateDead }) {
		return 0, optionsf("only tasks that are done or dead can be pruned")
	}
	if _, err := q.Ordered(ctx); err != nil {
		return 0, err
	}
	for _, state := range states {
		for {
			ids, err := q.oldest(ctx, state, olderThan)
			if err != nil || len(ids) == 0 {
				if err != nil {
					return deleted, q.error("prune", err)
				}
				break
			}
			n, err := q.execute(ctx, "DELETE t FROM "+schema.TaskTable+" t"+byID+" WHERE "+among(ids)+" AND state = ?", state)
			deleted += n
			if err != nil {
				return deleted, q.error("prune", err)
			}
			if len(ids) < rowsAtOnce {
				break
			}
			if err := server.Pause(ctx, prunePause); err != nil {
				return deleted, q.error("prune", err)
			}
		}
	}
	return deleted, q.error("prune", q.pruneKeys(ctx))
}

// oldest returns the ids of tasks that have been in the state longest, from the beginning
// of a range of the index.
func (q *Queue) oldest(ctx context.Context, state string, age time.Duration) (ids []uint64, err error) {
	err = sqlx.SelectContext(ctx, q.db.Pool(), &ids, "SELECT id FROM "+schema.TaskTable+forceClaim+
		" WHERE queue = ? AND state = ? AND claim_order = 0 AND state_at <= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND LIMIT ?",
		q.name, state, age.Microseconds(), rowsAtOnce)
	return ids, err
}
