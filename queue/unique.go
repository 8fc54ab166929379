package queue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A unique key is a row that names its task, in a table of its own. An index of the task
// table would cost every task, also those without a key, a fifth of its total cost on
// MySQL (BenchmarkClaim with Discard). The row exists while the task is neither done nor
// dead; the transaction that ends the task deletes it. A task that was deleted by hand
// leaves its row: the next task with that key takes the row over.

// itsKey joins a task t with its key, if it has it.
const itsKey = schema.TaskKeyTable + " k ON k.queue = t.queue AND k.unique_key = t.unique_key AND k.task = t.id"

// enter inserts rows by one statement and returns the id of the first. A row with a unique
// key must be the only one, in a transaction; its id is 0 if the queue already has the key.
func enter(ctx context.Context, tx notify.Tx, queue string, rows []row, packet int) (uint64, error) {
	key := rows[0].unique
	if key != "" {
		if taken, err := takeKey(ctx, tx, queue, key); err != nil || taken {
			return 0, err
		}
	}
	query, args := insertStatement(rows)
	execute := tx.ExecContext
	if !fitsEscaped(rows, packet) {
		execute = prepared(tx)
	}
	result, err := execute(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	first, err := result.LastInsertId()
	id := uint64(first)
	if err != nil || key == "" {
		return id, err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE "+schema.TaskKeyTable+" SET task = ? WHERE queue = ? AND unique_key = ?", id, queue, key); err != nil {
		return 0, fmt.Errorf("store the unique key: %w", err)
	}
	return id, nil
}

// prepared returns an ExecContext that sends the values unescaped.
func prepared(tx notify.Tx) func(ctx context.Context, query string, args ...any) (sql.Result, error) {
	return func(ctx context.Context, query string, args ...any) (sql.Result, error) {
		statement, err := tx.PrepareContext(ctx, query)
		if err != nil {
			return nil, dberror.NotStored(err)
		}
		defer func() { _ = statement.Close() }()
		return statement.ExecContext(ctx, args...)
	}
}

// takeKey inserts the key's row, or takes over a row whose task has ended. Otherwise the key is taken.
func takeKey(ctx context.Context, tx notify.Tx, queue, key string) (taken bool, err error) {
	_, err = tx.ExecContext(ctx, "INSERT INTO "+schema.TaskKeyTable+" (queue, unique_key, task) VALUES (?, ?, 0)", queue, key)
	if err == nil {
		return false, nil
	}
	if !server.Is(err, server.ErrDuplicate) {
		return false, fmt.Errorf("take the unique key: %w", err)
	}
	// The key's row is locked now, so its task can't end before this transaction does. The task's row
	// should stay unlocked for its worker: it is locked only if this transaction can't see it, because its
	// snapshot is older, or because the row is gone.
	for _, lock := range []string{"", " LOCK IN SHARE MODE"} {
		err := tx.QueryRowContext(ctx, "SELECT EXISTS (SELECT 1 FROM "+schema.TaskTable+" t JOIN "+itsKey+
			" WHERE k.queue = ? AND k.unique_key = ? AND t.state NOT IN ('done', 'dead')"+lock+")", queue, key).Scan(&taken)
		if err != nil || taken {
			return taken, err
		}
	}
	return false, nil
}

// freeKeys returns the statement that deletes the keys of those of the tasks that are done or dead, for the transaction that
// ended them.
func freeKeys(ids []uint64) string {
	return "DELETE k FROM " + schema.TaskTable + " t" + byID + " STRAIGHT_JOIN " + itsKey +
		" WHERE " + among(ids) + " AND t.state IN ('done', 'dead')"
}

// unlocked returns the tasks, whose rows the transaction has locked, without those whose keys another transaction has locked. It locks
// the others' keys, and waits for none. If the server has no SKIP LOCKED it returns all, and the statement that deletes the keys waits.
func (l *store) unlocked(ctx context.Context, conn *sqlx.Conn, ids []uint64) ([]uint64, error) {
	if !l.skips || len(ids) == 0 {
		return ids, nil
	}
	var mine, all []uint64
	var p packet
	query := "SELECT t.id FROM " + schema.TaskTable + " t" + byID + " STRAIGHT_JOIN " + itsKey + " WHERE " + among(ids)
	p.add(readIDs(&mine), query+" FOR UPDATE SKIP LOCKED")
	p.add(readIDs(&all), query)
	if err := p.send(ctx, conn); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(slices.Clone(ids), func(id uint64) bool { return slices.Contains(all, id) && !slices.Contains(mine, id) }), nil
}

// putOff defers the outcomes whose unique keys another session has locked, and brings back those whose keys are free. A session that has
// found a key taken may have it locked for long, and the other outcomes must not wait for that. timedOut means that an outcome has just
// waited in vain; a server without SKIP LOCKED does not show for which key, and all are deferred.
func (d *dispatcher) putOff(ctx context.Context, timedOut bool) error {
	d.again = time.Now().Add(keyAgain)
	all := d.pool.keyed()
	locked := all
	if d.store.skips || !timedOut {
		late, err := d.withoutRetry(func() (err error) {
			locked, err = d.store.lockedKeys(ctx, all)
			return err
		})
		if err != nil {
			return err
		}
		if late { // the whole table is locked
			locked = all
		}
	}
	if d.over() && (timedOut || len(locked) > 0) {
		return errLocked
	}
	d.pool.putOff(locked)
	return nil
}

// errLocked ends a worker after its StopTimeout.
var errLocked = errors.New("another session has rows of the tasks locked")

// lockedKeys returns those of the tasks whose rows or keys another transaction has locked. If the server has no SKIP LOCKED it
// returns none.
func (l *store) lockedKeys(ctx context.Context, ids []uint64) (locked []uint64, err error) {
	for some := range slices.Chunk(ids, rowsAtOnce) {
		err := l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			if _, err := conn.ExecContext(ctx, "START TRANSACTION"); err != nil {
				return err
			}
			free, err := l.unlocked(ctx, conn, some)
			if err != nil {
				return err
			}
			if _, err := conn.ExecContext(ctx, "ROLLBACK"); err != nil {
				return err
			}
			locked = append(locked, slices.DeleteFunc(slices.Clone(some), func(id uint64) bool { return slices.Contains(free, id) })...)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return locked, nil
}

func readIDs(ids *[]uint64) func(rows *sql.Rows) error {
	return func(rows *sql.Rows) error {
		var id uint64
		if err := rows.Scan(&id); err != nil {
			return err
		}
		*ids = append(*ids, id)
		return nil
	}
}

// pruneKeys deletes the keys of tasks that no longer exist.
func (q *Queue) pruneKeys(ctx context.Context) error {
	for after := ""; ; {
		var keys []struct {
			Key  string `db:"unique_key"`
			Task uint64 `db:"task"`
		}
		err := q.db.Pool().SelectContext(ctx, &keys, "SELECT k.unique_key, k.task FROM "+schema.TaskKeyTable+" k LEFT JOIN "+schema.TaskTable+
			" t ON t.id = k.task AND t.queue = k.queue AND t.unique_key = k.unique_key"+
			" WHERE k.queue = ? AND k.unique_key > ? AND t.id IS NULL ORDER BY k.unique_key LIMIT ?", q.name, after, rowsAtOnce)
		if err != nil || len(keys) == 0 {
			return err
		}
		after = keys[len(keys)-1].Key
		for _, k := range keys { // one by one, because with a list the server may read, and lock, all keys
			if _, err := q.execute(ctx, "DELETE FROM "+schema.TaskKeyTable+" WHERE queue = ? AND unique_key = ? AND task = ?", q.name, k.Key, k.Task); err != nil {
				return err
			}
		}
	}
}
