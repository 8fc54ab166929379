package notify

import (
	"context"
	"database/sql"
)

// Tx is a transaction of the caller's: *sql.Tx, or a *sql.Conn on which one has begun, or their sqlx twins. All its
// statements go over one connection: a pool, such as *sql.DB, is refused. The caller commits, and after an error rolls back.
type Tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}
