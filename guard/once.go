package guard

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// OnceTable is a table in the DB's database whose rows are each done once. The zero value is the table that `mqnotify init`
// creates: its keys are any strings of 1 to 255 characters, and its rows need not be inserted beforehand.
type OnceTable struct {
	// Table is the table's name.
	Table string
	// Key is the column that names the row: an integer or a string, unique by itself.
	Key string
	// Time is a nullable column of a time type. It is NULL until a caller gets through.
	Time string
	// Taker is a nullable column for 26 ASCII characters, or "" for none. With it, a caller that
	// loses the connection during Try reconnects and finds out whether it got through;
	// without it, the error says that this is unknown.
	Taker string
}

// Once lets at most one caller through for each key, by the conditional update
//
//	UPDATE table SET time = NOW(6) WHERE key = ? AND time IS NULL
//
// of a row that exists. The caller that changed the row may act. The update changes every row
// that it finds, so the count is the same whether the connection counts changed
// or found rows (clientFoundRows). Safe for concurrent use.
type Once struct {
	db    *notify.DB
	table OnceTable
	own   bool   // the table of `mqnotify init`, into which Once inserts rows
	now   string // an expression for the server's time

	key atomic.Pointer[column] // nil before the first use
}

// NewOnce returns the Once of a table. In a table of the user it inserts no row: a key without one
// is ErrNoRow. The first use reads the definition of such a table, and refuses a key that is
// not unique with notify.ErrOptions. NewOnce itself refuses only invalid names of a table or a column.
func NewOnce(db *notify.DB, table OnceTable) (*Once, error) {
	if table == (OnceTable{}) {
		ready := OnceTable{Table: schema.OnceTable, Key: "once_key", Time: "done_at", Taker: "taker"}
		o := &Once{db: db, table: ready, own: true, now: "UTC_TIMESTAMP(6)"}
		o.key.Store(&column{table: schema.OnceTable, engine: innodb})
		return o, nil
	}
	names := []string{table.Table, table.Key, table.Time}
	if table.Taker != "" {
		names = append(names, table.Taker)
	}
	for _, name := range names {
		if err := ident.Check(name); err != nil {
			return nil, fmt.Errorf("guard: %w", err)
		}
	}
	return &Once{db: db, table: table, now: "NOW(6)"}, nil
}

// Try reports whether the caller may act on the key. It returns true for one of all callers, on
// all machines, until Reset. The key is a string, or an integer if the column has an integer
// type.
//
// After an error no caller may act, because the key may be used up: Try guarantees at
// most once, not at least once. TryTx is exactly once for the transaction's work.
func (o *Once) Try(ctx context.Context, key any) (bool, error) {
	arg, err := o.argument(ctx, key)
	if err != nil {
		return false, err
	}
	taker := newTaker()
	mends := server.Retryable
	if o.table.Taker != "" {
		mends = func(err error) bool { return server.Retryable(err) || server.ConnectionLost(err) }
	}
	var through bool
	err = repeat(ctx, mends, func() (err error) {
		through, err = o.try(ctx, o.db.Pool(), arg, taker, "")
		return err
	})
	return through && err == nil, o.explain(key, err)
}

// TryTx is Try inside a transaction of the caller. The row is done if the transaction commits,
// and not done otherwise. Other callers that try in the meantime wait for its end. After an
// error the caller rolls back. The table must be InnoDB's: rows of another engine would stay done
// after a rollback, so TryTx refuses them with notify.ErrOptions.
//
// Begin the transaction READ COMMITTED: under REPEATABLE READ MariaDB since 11.6.2
// (innodb_snapshot_isolation) refuses it, with error 1020, if another caller got through, or
// the key was reset, after the transaction's first read.
func (o *Once) TryTx(ctx context.Context, tx notify.Tx, key any) (bool, error) {
	if err := checkTx(tx); err != nil {
		return false, err
	}
	if o.key.Load() == nil { // use the caller's connection, which may be the last one of the pool
		if err := o.look(ctx, tx); err != nil {
			return false, o.explain(key, err)
		}
	}
	arg, err := o.argument(ctx, key)
	if err == nil {
		err = o.key.Load().transactional()
	}
	if err != nil {
		return false, err
	}
	// A locking read, because the transaction's snapshot may be older than the row that the UPDATE found.
	through, err := o.try(ctx, tx, arg, newTaker(), " LOCK IN SHARE MODE")
	return through && err == nil, o.explain(key, err)
}

// Reset lets one more caller through, and reports whether the key had been used up.
func (o *Once) Reset(ctx context.Context, key any) (bool, error) {
	arg, err := o.argument(ctx, key)
	if err != nil {
		return false, err
	}
	query := fmt.Sprintf("UPDATE %s SET %s = NULL WHERE %s = ? AND %[2]s IS NOT NULL",
		ident.Quote(o.table.Table), ident.Quote(o.table.Time), ident.Quote(o.table.Key))
	var reset int64
	err = repeat(ctx, server.Retryable, func() (err error) {
		reset, err = affected(ctx, o.db.Pool(), query, arg)
		return err
	})
	return reset > 0, o.explain(key, err)
}

// try runs the statement, and if it found no row, reads why. reading is the locking clause of that read.
func (o *Once) try(ctx context.Context, q notify.Tx, arg any, taker string, reading string) (bool, error) {
	table, key, at := ident.Quote(o.table.Table), ident.Quote(o.table.Key), ident.Quote(o.table.Time)
	update, args := "UPDATE "+table+" SET "+at+" = "+o.now, []any{}
	look := "SELECT " + at + " IS NOT NULL, NULL"
	if o.table.Taker != "" {
		update, args = update+", "+ident.Quote(o.table.Taker)+" = ?", append(args, taker)
		look = "SELECT " + at + " IS NOT NULL, " + ident.Quote(o.table.Taker)
	}
	update, args = update+" WHERE "+key+" = ? AND "+at+" IS NULL", append(args, arg)
	look += " FROM " + table + " WHERE " + key + " = ?" + reading
	for first := true; ; first = false {
		found, err := affected(ctx, q, update, args...)
		if err != nil || found == 1 {
			return found == 1, err
		}
		var done bool
		var by sql.NullString
		err = q.QueryRowContext(ctx, look, arg).Scan(&done, &by)
		switch {
		case err == nil && done:
			// Find out whether this attempt did it, whose answer was lost.
			return by.String == taker, nil
		case err == nil && !first:
			return false, nil // other callers used it up and reset it in between: the next caller gets it
		case err == nil:
			continue
		case !errors.Is(err, sql.ErrNoRows):
			return false, err
		case !o.own || !first:
			return false, fmt.Errorf("%w: insert it first, with NULL in %s", ErrNoRow, at)
		}
		if _, err := q.ExecContext(ctx, "INSERT IGNORE INTO "+table+" ("+key+") VALUES (?)", arg); err != nil {
			return false, err
		}
	}
}

// argument checks a key, and returns the statement's argument.
func (o *Once) argument(ctx context.Context, key any) (any, error) {
	if o.key.Load() == nil {
		if err := again(ctx, func() error { return o.look(ctx, o.db.Pool()) }); err != nil {
			return nil, o.explain(key, err)
		}
	}
	arg, err := o.key.Load().argument(key)
	if text, is := arg.(string); err == nil && o.own && is {
		err = checkName("key", text)
	}
	return arg, err
}

// look reads the table's definition. Two callers may do so at the same time. Neither waits for the other, which might wait for
// a connection that the first one's transaction has.
func (o *Once) look(ctx context.Context, q notify.Tx) error {
	key, err := describe(ctx, q, o.db.Name(), o.table.Table, o.table.Key, o.table.Time, o.table.Taker)
	if err == nil {
		o.key.Store(key)
	}
	return err
}

func (o *Once) explain(key any, err error) error {
	return explain("once in "+o.table.Table+", key", fmt.Sprint(key), err)
}

// affected runs a statement whose WHERE excludes rows that need no change, so that it
// changes every row that it finds. It returns their number.
func affected(ctx context.Context, q notify.Tx, query string, args ...any) (int64, error) {
	result, err := q.ExecContext(ctx, query, args...)
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}
