package queue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// The states of a task, in the order of its life.
const (
	stateScheduled  = "scheduled"
	stateReady      = "ready"
	stateInProgress = "in progress"
	stateFailed     = "failed"
	stateDone       = "done"
	stateDead       = "dead"
)

var states = []string{stateScheduled, stateReady, stateInProgress, stateFailed, stateDone, stateDead}

// Task is a task of a queue.
type Task struct {
	ID      uint64
	Queue   string
	Payload []byte
	// Attempt is 1 for the first. It grows with every claim, so that ID and Attempt are a
	// fencing token: a resource that the task writes to can refuse an older one.
	Attempt  int
	Retries  int // retries that are left if this attempt fails
	Lapses   int // how many claims on the task have lapsed because their workers vanished
	Priority int
	Unique   string
	// CreatedAt is when the task was entered, by the server's clock.
	CreatedAt time.Time

	// Only List sets the following fields.

	// State is one of
	//
	//   - "scheduled": entered, and not claimed before its time
	//   - "ready": may be claimed
	//   - "in progress": claimed
	//   - "failed": its last attempt failed, or its worker vanished; it becomes ready again at its time
	//   - "done"
	//   - "dead": failed for the last time, or cancelled: the dead letters
	State string
	// At is when a scheduled or failed task becomes ready, when the claim on a task in progress lapses, and since when a task is
	// done or dead. It is zero for a task that is ready.
	At        time.Time
	Owner     string // the worker that has the task, or had it last
	LastError string
}

// FinishTx marks the task as done inside the handler's own transaction, so that the
// handler's statements there and the task's end are committed together: exactly once, whatever
// fails. It returns ErrClaimLost if the worker no longer has the task; the handler must then
// roll back. After its commit the handler returns nil as usual.
//
// Make it the last statement before the commit, because it locks the task's row. While that is
// locked the worker can't renew its claim on this task, and, if the server has no SKIP LOCKED, any of its claims.
//
// Begin the transaction READ COMMITTED: under REPEATABLE READ MariaDB since 11.6.2
// (innodb_snapshot_isolation) refuses it, with error 1020, if the worker has renewed the claim
// after the transaction's first read.
func FinishTx(ctx context.Context, tx notify.Tx, task Task) error {
	if server.IsPool(tx) {
		return optionsf("FinishTx on a pool, which commits each statement by itself: pass the handler's transaction")
	}
	if task.Unique != "" { // another transaction may have the key locked: wait for it before the task's row is locked
		var there uint64
		err := tx.QueryRowContext(ctx, "SELECT task FROM "+schema.TaskKeyTable+" WHERE queue = ? AND unique_key = ? FOR UPDATE", task.Queue, task.Unique).Scan(&there)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("queue: finish task %d: %w", task.ID, explain(err))
		}
	}
	result, err := tx.ExecContext(ctx, "UPDATE "+schema.TaskTable+
		" SET state = 'done', state_at = UTC_TIMESTAMP(6), last_error = NULL"+
		" WHERE id = ? AND attempts = ? AND state = 'in progress' AND claim_order = 0", task.ID, task.Attempt)
	if err != nil {
		return fmt.Errorf("queue: finish task %d: %w", task.ID, explain(err))
	}
	changed, err := result.RowsAffected()
	if err != nil {
		return fmt.Errorf("queue: finish task %d: %w", task.ID, err)
	}
	if changed == 0 {
		return fmt.Errorf("queue: finish task %d: %w", task.ID, ErrClaimLost)
	}
	if task.Unique == "" {
		return nil
	}
	if _, err := tx.ExecContext(ctx, freeKeys([]uint64{task.ID})); err != nil {
		return fmt.Errorf("queue: finish task %d: %w", task.ID, explain(err))
	}
	return nil
}
