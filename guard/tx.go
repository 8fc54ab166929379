package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/dberror"
	"github.com/mqnotify/mqnotify/notify"
)

func checkTx(tx notify.Tx) error {
	if _, pool := tx.(interface{ SetMaxOpenConns(n int) }); pool {
		return wrongf("a pool instead of a transaction, where each statement is committed by itself: begin one and pass that")
	}
	return nil
}

// transact runs f in a transaction on the connection and commits it. READ COMMITTED:
// a locking read then locks no gap, and reads what is there now.
func transact(ctx context.Context, conn *sqlx.Conn, f func(ctx context.Context, tx *sqlx.Tx) error) error {
	tx, err := conn.BeginTxx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
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

// connect takes a connection of the pool for a while.
func connect(ctx context.Context, db *notify.DB) (conn *sqlx.Conn, release func(), err error) {
	if conn, err = db.Pool().Connx(ctx); err != nil {
		return nil, nil, fmt.Errorf("connect: %w", err)
	}
	return conn, func() { _ = conn.Close() }, nil // the pool drops a bad one
}

// discard makes the pool drop a connection when it is handed back.
func discard(conn *sqlx.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
}
