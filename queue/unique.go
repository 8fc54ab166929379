package queue

import (
	"context"
	"fmt"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
	schema "github.com/mqnotify/mqnotify/sql"
)

// A unique key is a row that names its task, in a table of its own: an index of the task
// table would cost every task, also those without a key, a fifth of what its life costs on
// MySQL (BenchmarkClaim with Discard). The key is taken while that task is there and neither done nor
// dead, and whoever finds that it is not takes it over. So nothing that ends or deletes
// tasks, a DELETE or TRUNCATE by hand included, has to free keys for others to get them;
// what is freed is freed for the space.

// takeKey answers by its last insert id: none if the key was there for nobody, this task's if
// it was a finished one's, else its holder's. Affected rows would tell less where the
// connection counts those that were found. The read locks, or it would not see what
// was committed since the caller's transaction began.
const takeKey = "INSERT INTO " + schema.TaskKeyTable + " (queue, unique_key, task) VALUES (?, ?, ?)" +
	" ON DUPLICATE KEY UPDATE task = LAST_INSERT_ID(IF(EXISTS (SELECT 1 FROM " + schema.TaskTable + " t WHERE t.id = " +
	schema.TaskKeyTable + ".task AND t.state NOT IN ('done', 'dead') LOCK IN SHARE MODE), " + schema.TaskKeyTable + ".task, VALUES(task)))"

// enter inserts rows by one statement and returns the first one's id. One with a unique
// key is alone and in a transaction; its id is 0 when the key is taken.
func enter(ctx context.Context, tx Tx, queue string, rows []row) (uint64, error) {
	key := rows[0].unique
	if key != "" {
		if _, err := tx.ExecContext(ctx, "SAVEPOINT mqnotify_task"); err != nil {
			return 0, fmt.Errorf("set a savepoint: %w", err)
		}
	}
	query, args := insertStatement(rows)
	result, err := tx.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, fmt.Errorf("insert: %w", err)
	}
	id, err := result.LastInsertId()
	if err != nil || key == "" {
		return uint64(id), err
	}
	result, err = tx.ExecContext(ctx, takeKey, queue, key, id)
	if err != nil {
		return 0, fmt.Errorf("take the unique key: %w", err)
	}
	holder, err := result.LastInsertId()
	if err != nil || holder == 0 || holder == id {
		return uint64(id), err
	}
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT mqnotify_task")
	return 0, err
}

// freeKeys deletes the keys of tasks that are done.
func (l *line) freeKeys(ctx context.Context, outcomes []outcome) error {
	var ids []uint64
	args := []any{l.queue}
	for _, o := range outcomes {
		if o.kind == wasDone && o.held.task.Unique != "" {
			ids, args = append(ids, o.held.task.ID), append(args, o.held.task.Unique)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	err := l.do(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		// A claim that was lost is another's to finish.
		_, err := conn.ExecContext(ctx, "DELETE FROM "+schema.TaskKeyTable+" WHERE queue = ? AND unique_key IN (?"+strings.Repeat(", ?", len(ids)-1)+
			") AND task IN ("+list(ids)+") AND NOT EXISTS (SELECT 1 FROM "+schema.TaskTable+" t WHERE t.id = "+schema.TaskKeyTable+".task AND t.state <> 'done')", args...)
		return err
	})
	if server.Number(err) != 0 { // whoever wants the key takes it, and Prune finds it
		l.log.DebugContext(ctx, "the keys of tasks that are done are not deleted", "error", err)
		return nil
	}
	return err
}

// pruneKeys deletes the keys of tasks that are no more.
func (q *Queue) pruneKeys(ctx context.Context) error {
	for after := ""; ; {
		var keys []struct {
			Key  string `db:"unique_key"`
			Task uint64 `db:"task"`
		}
		err := q.db.Pool().SelectContext(ctx, &keys, "SELECT k.unique_key, k.task FROM "+schema.TaskKeyTable+" k LEFT JOIN "+schema.TaskTable+
			" t ON t.id = k.task WHERE k.queue = ? AND k.unique_key > ? AND t.id IS NULL ORDER BY k.unique_key LIMIT ?", q.name, after, rowsAtOnce)
		if err != nil || len(keys) == 0 {
			return err
		}
		ids, args := make([]uint64, len(keys)), []any{q.name}
		for i, k := range keys {
			ids[i], args = k.Task, append(args, k.Key)
		}
		after = keys[len(keys)-1].Key
		if _, err := q.execute(ctx, "DELETE FROM "+schema.TaskKeyTable+" WHERE queue = ? AND unique_key IN (?"+strings.Repeat(", ?", len(keys)-1)+
			") AND task IN ("+list(ids)+")", args...); err != nil {
			return err
		}
	}
}
