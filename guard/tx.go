package guard

import (
	"context"
	"database/sql"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

func checkTx(tx notify.Tx) error {
	if server.IsPool(tx) {
		return wrongf("a pool instead of a transaction: a pool commits each statement by itself, so begin a transaction and pass that")
	}
	return nil
}

// transact runs f in a transaction on the connection and commits it. The transaction is READ COMMITTED, so that
// a locking read locks no gap. A server that logs statements refuses writes in it, so there it is REPEATABLE READ.
func transact(ctx context.Context, conn *sqlx.Conn, statementLog bool, f func(ctx context.Context, tx *sqlx.Tx) error) error {
	level := sql.LevelReadCommitted
	if statementLog {
		level = sql.LevelRepeatableRead
	}
	tx, err := conn.BeginTxx(ctx, &sql.TxOptions{Isolation: level})
	if err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := f(ctx, tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fmt.Errorf("commit: %w", context.Cause(ctx))
	}
	if err := tx.Commit(); err != nil {
		return dberror.Unknown(fmt.Errorf("commit: %w", err))
	}
	return nil
}
