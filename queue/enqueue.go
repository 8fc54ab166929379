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
// ids in their order once they are committed; 0 for one whose unique key the queue has
// already. No entry is no statement.
//
// A deadlock or a lock that took too long is tried again a few times. A lost connection
// is not: see notify.ErrUnknown. Other errors are ErrNotFound, notify.ErrNoState, notify.ErrOptions,
// a *notify.TooLargeError, notify.ErrDenied, notify.ErrClosed, the cause of ctx, or the server's.
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

// EnqueueTx enters the tasks inside the caller's transaction, so that they are there if
// it commits and never were if it does not. The caller commits, and calls Notify after
// it. After an error the caller rolls back. Where the queue is ordered, others who enter
// tasks wait for that commit.
//
// While that transaction is open a task can't end whose unique key it has found taken: its worker tries
// again and again, for 2 s in which it does nothing else. Make it one of the last things before the
// commit. MariaDB since 11.6.2 (innodb_snapshot_isolation) may end the transaction with error 1020 when
// the task that has the key was entered, or claimed, after its first read: begin it READ COMMITTED.
func (q *Queue) EnqueueTx(ctx context.Context, tx notify.Tx, entries ...Entry) ([]uint64, error) {
	if len(entries) == 0 {
		return nil, nil
	}
	if _, pool := tx.(interface{ SetMaxOpenConns(n int) }); pool {
		return nil, optionsf("EnqueueTx on a pool, where each statement is committed by itself: " +
			"begin a transaction and pass that, or call Enqueue")
	}
	rows, err := q.rows(ctx, tx, entries) // a second connection may never be free while this one is held
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

// packet is the server's max_allowed_packet, in bytes. The settings are known.
func (q *Queue) packet() int { return q.settings.Load().packet }

// commit stores the rows, all or none.
func (q *Queue) commit(ctx context.Context, rows []row) (ids []uint64, err error) {
	if len(batches(rows, q.packet())) == 1 && rows[0].unique == "" && !q.settings.Load().ordered { // a statement is a transaction
		conn, err := q.db.Pool().Conn(ctx) // in a step of its own: what fails here has sent nothing
		if err != nil {
			return nil, fmt.Errorf("connect: %w", err)
		}
		defer conn.Close()
		ids, err = q.insert(ctx, conn, rows)
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
//
// A statement's first id is its LAST_INSERT_ID, and the others follow by the session's
// auto_increment_increment, as the manual says of a "simple insert".
func (q *Queue) insert(ctx context.Context, tx notify.Tx, rows []row) ([]uint64, error) {
	if q.settings.Load().ordered {
		if _, err := readSettings(ctx, tx, q.name, " FOR UPDATE"); err != nil {
			return nil, err
		}
	}
	ids := make([]uint64, len(rows))
	order := inserting(rows)
	if q.settings.Load().ordered { // the others wait
		slices.Sort(order)
	}
	sorted := make([]row, len(rows))
	for i, at := range order {
		sorted[i] = rows[at]
	}
	step := uint64(1)
	if len(rows) > 1 {
		if err := tx.QueryRowContext(ctx, "SELECT @@auto_increment_increment").Scan(&step); err != nil {
			return nil, fmt.Errorf("read auto_increment_increment: %w", err)
		}
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
