package queue

import (
	"context"
	"fmt"
	"slices"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

const insertInto = "INSERT INTO " + schema.TaskTable +
	" (queue, state, claim_order, state_at, priority, retries, unique_key, payload) VALUES "

// Enqueue enters the tasks, all or none of them, wakes workers, and returns the tasks'
// ids in the order of the entries once they are committed; 0 for a task whose unique key the queue already
// has. Without entries it sends nothing.
//
// Enqueue tries again a few times after a deadlock or a lock wait timeout, but not after a lost
// connection: see notify.ErrUnknown. Other errors are ErrNotFound, notify.ErrNoState, notify.ErrOptions,
// a *notify.TooLargeError, notify.ErrDenied, notify.ErrClosed, the error or the cause of ctx, or the server's.
func (q *Queue) Enqueue(ctx context.Context, entries ...Entry) ([]uint64, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	rows, err := q.rows(ctx, q.db.Pool(), entries)
	if err != nil {
		return nil, q.error("enqueue into", err)
	}
	var ids []uint64
	err = server.Again(ctx, server.Retryable, func() (err error) {
		ids, err = q.commit(ctx, rows)
		return err
	})
	if err != nil {
		return nil, q.error("enqueue into", err)
	}
	q.Notify(ctx)
	return ids, nil
}

// EnqueueTx enters the tasks inside the caller's transaction. They exist when it commits, and vanish if it rolls
// back. The caller commits, and calls Notify afterwards. After an error the caller rolls back. In an ordered queue, other
// callers that enter tasks wait for that commit.
//
// If EnqueueTx finds a unique key taken, the task that has the key can't end before the transaction does: its worker tries
// repeatedly, the first time for 2 s, during which it does nothing else. Call EnqueueTx close to the
// commit. MariaDB since 11.6.2 (innodb_snapshot_isolation) may end the transaction with error 1020 if
// the task with the key was entered, or claimed, after its first read: begin it READ COMMITTED.
func (q *Queue) EnqueueTx(ctx context.Context, tx notify.Tx, entries ...Entry) ([]uint64, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	if server.IsPool(tx) {
		return nil, optionsf("EnqueueTx on a pool, which commits each statement by itself: " +
			"begin a transaction and pass that, or call Enqueue")
	}
	rows, err := q.rows(ctx, tx, entries) // over tx: with the pool exhausted, a second connection might never be free
	if err == nil {
		var ids []uint64
		if ids, err = q.insert(ctx, tx, rows); err == nil {
			return ids, nil
		}
	}
	return nil, q.error("enqueue into", err)
}

func (q *Queue) rows(ctx context.Context, db rowQueryer, entries []Entry) ([]row, error) {
	if q.closed.Load() {
		return nil, notify.ErrClosed
	}
	ordered, err := q.orderedOver(ctx, db)
	if err != nil {
		return nil, err
	}
	rows := make([]row, len(entries))
	for i, e := range entries {
		if rows[i], err = newRow(q.name, e, ordered); err == nil {
			err = rows[i].fits(i, q.packet())
		}
		if err != nil {
			return nil, fmt.Errorf("task %d of %d: %w", i+1, len(entries), err)
		}
	}
	return rows, nil
}

// packet returns the server's max_allowed_packet, in bytes. The settings must have been read.
func (q *Queue) packet() int { return q.settings.Load().packet }

// commit stores the rows, all or none.
func (q *Queue) commit(ctx context.Context, rows []row) (ids []uint64, err error) {
	if len(batches(rows, q.packet())) == 1 && rows[0].unique == "" && !q.settings.Load().ordered { // the statement is the transaction
		conn, err := q.db.Pool().Conn(ctx) // in a step of its own, because an error here means that nothing was sent
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		defer conn.Close()
		step, err := increment(ctx, conn, rows)
		if err != nil {
			return nil, err
		}
		ids, err = q.store(ctx, conn, rows, step)
		return ids, dberror.Unknown(err)
	}
	tx, err := q.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return nil, fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if ids, err = q.insert(ctx, tx, rows); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err := tx.Commit(); err != nil {
		return nil, dberror.Unknown(fmt.Errorf("commit: %w", err))
	}
	return ids, nil
}

// insert stores the rows in a transaction and returns their ids.
func (q *Queue) insert(ctx context.Context, tx notify.Tx, rows []row) ([]uint64, error) {
	step, err := increment(ctx, tx, rows)
	if err != nil {
		return nil, err
	}
	return q.store(ctx, tx, rows, step)
}

// increment returns the session's auto_increment_increment, or 1 for one row.
func increment(ctx context.Context, tx notify.Tx, rows []row) (step uint64, err error) {
	if len(rows) == 1 {
		return 1, nil
	}
	if err := tx.QueryRowContext(ctx, "SELECT @@auto_increment_increment").Scan(&step); err != nil {
		return 0, fmt.Errorf("read auto_increment_increment: %w", err)
	}
	return step, nil
}

// store inserts the rows; step is the difference between consecutive ids.
//
// LAST_INSERT_ID is the first id of a statement. The others follow at the session's
// auto_increment_increment, because the statement is a "simple insert" in the manual's words.
func (q *Queue) store(ctx context.Context, tx notify.Tx, rows []row, step uint64) ([]uint64, error) {
	if q.settings.Load().ordered {
		if _, err := readSettings(ctx, tx, q.name, " FOR UPDATE"); err != nil {
			return nil, err
		}
	}
	ids := make([]uint64, len(rows))
	order := inserting(rows)
	if q.settings.Load().ordered { // keep the order of the entries; other callers wait for the queue's row
		slices.Sort(order)
	}
	sorted := make([]row, len(rows))
	for i, at := range order {
		sorted[i] = rows[at]
	}
	for _, batch := range batches(sorted, q.packet()) {
		first, err := enter(ctx, tx, q.name, batch, q.packet())
		if err != nil {
			return nil, err
		}
		for i := range batch {
			ids[order[i]] = first + uint64(i)*step
		}
		order = order[len(batch):]
	}
	return ids, nil
}
