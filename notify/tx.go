package notify

import (
	"context"
	"database/sql"
)

// Tx is a transaction of the caller: a *sql.Tx, a *sql.Conn on which one has begun, or their sqlx equivalents. All its statements
// must use one connection, so a pool such as *sql.DB is refused, except by NotifyTx and Flag, which need one statement. The caller
// commits, or rolls back after an error.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
