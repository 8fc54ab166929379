package guard

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// RowRef is one row of a table in the DB's database.
type RowRef struct {
	// Table is the name of an InnoDB table; other engines have no row locks. Key is a column
	// that is unique by itself, an integer or a string. If it is not unique, servers lock
	// every row that they pass on their search.
	Table, Key string
	// Value is the row's key: a string, or an integer if the column has an integer type.
	Value any
}

func (r RowRef) text() string { return fmt.Sprintf("%s.%s = %v", r.Table, r.Key, r.Value) }

// LockRow runs f in a transaction that holds the row by SELECT ... FOR UPDATE, and
// commits. No other transaction can change the row, or lock it in this way, in the meantime. If f
// returns an error or panics, LockRow rolls back. The transaction is READ COMMITTED, so
// that f reads the newest committed rows.
//
// f must return the errors of its statements, wrapped or not. After a deadlock LockRow
// runs f again, so work of f outside the transaction must tolerate repetition. It is better
// to do no such work in f: see TwoStep.
//
// wait is the longest wait for the row, in whole seconds, rounded up: innodb_lock_wait_timeout. 0 means the server's own, 50 s
// by default. Less than 0 does not wait: NOWAIT. Otherwise it is at least 1 ms.
//
// notify.ErrNotAcquired means that another transaction still has the row locked after the wait,
// ErrNoRow that the row does not exist, and notify.ErrUnknown that the connection ended during the commit.
//
// Only one server knows the lock. On Galera, or a group with several primaries, two callers on
// different servers may both run f. If both change the same row, the later commit is
// refused, so f must change the row that it locks.
func LockRow(ctx context.Context, db *notify.DB, row RowRef, wait time.Duration, f func(ctx context.Context, tx *sqlx.Tx) error) error {
	at, err := row.find(ctx, db)
	if err != nil {
		return err
	}
	return at.lock(ctx, db, wait, func(ctx context.Context, tx *sqlx.Tx, _ string) error { return f(ctx, tx) })
}

// place is a row whose table's definition was read.
type place struct {
	row      RowRef
	key      *column
	arg      any    // the key as the argument of a statement
	identity string // an SQL expression: a constant, until identify makes it the row's
}

// find reads the definition of the row's table. It does not read the row.
func (r RowRef) find(ctx context.Context, db *notify.DB) (*place, error) {
	for _, name := range []string{r.Table, r.Key} {
		if err := ident.Check(name); err != nil {
			return nil, fmt.Errorf("guard: %w", err)
		}
	}
	at := &place{row: r, identity: "1"}
	err := again(ctx, func() (err error) {
		at.key, err = describeKey(ctx, db.Pool(), db.Name(), r.Table, r.Key)
		return err
	})
	if err == nil {
		err = at.key.transactional()
	}
	if err != nil {
		return nil, explain("lock row", r.text(), err)
	}
	at.arg, err = at.key.argument(r.Value)
	return at, err
}

// from returns the FROM and WHERE of a statement that reads the row.
func (p *place) from() string {
	return " FROM " + ident.Quote(p.row.Table) + " WHERE " + ident.Quote(p.row.Key) + " = ?"
}

// lock is LockRow with a function that also gets the row's identity.
func (p *place) lock(ctx context.Context, db *notify.DB, wait time.Duration, f func(ctx context.Context, tx *sqlx.Tx, identity string) error) error {
	if wait > 0 {
		if err := checkTime("a row's wait", wait, time.Millisecond); err != nil {
			return err
		}
	}
	mends := func(err error) bool { return server.Retryable(err) && !errors.Is(err, notify.ErrNotAcquired) }
	return repeat(ctx, mends, func() error {
		conn, err := db.Pool().Connx(ctx)
		if err != nil {
			return fmt.Errorf("connect: %w", err)
		}
		defer func() { _ = conn.Close() }() // the pool discards a bad one
		if wait > 0 {
			restore, err := patience(ctx, conn, wait)
			if err != nil {
				return explain("lock row", p.row.text(), err)
			}
			defer restore()
		}
		return transact(ctx, conn, p.key.statementLog, func(ctx context.Context, tx *sqlx.Tx) error {
			identity, err := p.take(ctx, tx, wait < 0)
			if err != nil {
				return explain("lock row", p.row.text(), err)
			}
			return f(ctx, tx, identity)
		})
	})
}

// take locks the row, and returns its identity.
func (p *place) take(ctx context.Context, tx *sqlx.Tx, atOnce bool) (identity string, err error) {
	query := "SELECT " + p.identity + p.from() + " FOR UPDATE"
	if atOnce {
		query += " NOWAIT"
	}
	err = tx.QueryRowxContext(ctx, query, p.arg).Scan(&identity)
	switch {
	case server.Is(err, server.ErrLockWaitTimeout, server.ErrLockNoWait):
		return "", fmt.Errorf("%w: %w", notify.ErrNotAcquired, err)
	case errors.Is(err, sql.ErrNoRows):
		return "", ErrNoRow
	}
	return identity, err
}

// patience sets how long the connection waits for a row lock, until restore is called.
func patience(ctx context.Context, conn *sqlx.Conn, d time.Duration) (restore func(), err error) {
	_, err = conn.ExecContext(ctx, "SET @mqnotify_patience = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = ?",
		int64(math.Ceil(d.Seconds())))
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoing)
		defer cancel()
		if _, err := conn.ExecContext(ctx, "SET SESSION innodb_lock_wait_timeout = @mqnotify_patience"); err != nil {
			_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // the pool discards it; otherwise its next user would have this timeout
		}
	}, nil
}
