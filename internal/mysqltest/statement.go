package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
)

// Database runs statements: a pool, a connection or a transaction, of database/sql or of sqlx.
type Database interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const deadlock = 1213

// isNumber reports whether the server's error has the number.
func isNumber(err error, number uint16) bool {
	var failure *mysql.MySQLError
	return errors.As(err, &failure) && failure.Number == number
}

// Exec runs a statement that must succeed. On a pool it repeats a statement that has met a deadlock with those of the tested
// code. In a transaction a deadlock fails the test, because the server has rolled back the whole transaction.
func Exec(tb testing.TB, db Database, query string, args ...any) {
	tb.Helper()
	_, pool := db.(interface{ Stats() sql.DBStats })
	_, err := db.ExecContext(tb.Context(), query, args...)
	for range 10 {
		if !pool || !isNumber(err, deadlock) {
			break
		}
		_, err = db.ExecContext(tb.Context(), query, args...)
	}
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
}

// ExecAll runs statements that must succeed, one after another.
func ExecAll(tb testing.TB, db Database, statements ...string) {
	tb.Helper()
	for _, statement := range statements {
		Exec(tb, db, statement)
	}
}

// Value returns the result of a query for one value.
func Value[T any](tb testing.TB, db Database, query string, args ...any) (v T) {
	tb.Helper()
	err := again(tb, func() error { return db.QueryRowContext(tb.Context(), query, args...).Scan(&v) })
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return v
}

// Values returns the result of a query for one column, row by row.
func Values[T any](tb testing.TB, db Database, query string, args ...any) (all []T) {
	tb.Helper()
	err := again(tb, func() error {
		all = nil
		rows, err := db.QueryContext(tb.Context(), query, args...)
		if err != nil {
			return err
		}
		defer func() { _ = rows.Close() }()
		for rows.Next() {
			var v T
			if err := rows.Scan(&v); err != nil {
				return err
			}
			all = append(all, v)
		}
		return rows.Err()
	})
	if err != nil {
		tb.Fatalf("%s: %v", query, err)
	}
	return all
}

// again repeats read while MySQL refuses to list the sessions because of a statement of another test (notText).
func again(tb testing.TB, read func() error) error {
	for late := time.After(patience); ; {
		err := read()
		if !isNumber(err, notText) {
			return err
		}
		select {
		case <-late:
			return err
		case <-tb.Context().Done():
			return err
		case <-time.After(time.Millisecond):
		}
	}
}

// Sessions returns the ids of the other sessions that use the database. If condition is not empty, it must hold for them.
// Callers end these sessions, so a wrong id would do harm: MariaDB's process list sometimes shows a session with the database
// of the row before it. Therefore Sessions returns only the sessions that three lists in a row show.
func Sessions(tb testing.TB, db Database, database, condition string) []uint64 {
	tb.Helper()
	query := "SELECT ID FROM information_schema.PROCESSLIST WHERE DB = ? AND ID <> CONNECTION_ID()"
	if condition != "" {
		query += " AND " + condition
	}
	ids := Values[uint64](tb, db, query, database)
	for range 2 {
		again := Values[uint64](tb, db, query, database)
		ids = slices.DeleteFunc(ids, func(id uint64) bool { return !slices.Contains(again, id) })
	}
	return ids
}

// noSuchSession is the number of the server's error for a KILL of a session that has ended.
const noSuchSession = 1094

// KillSession ends a session (KILL CONNECTION), and reports whether the session was still there.
func KillSession(tb testing.TB, db Database, id uint64) bool {
	tb.Helper()
	return kill(tb, db, "CONNECTION", id)
}

// KillQuery ends the statement that a session runs (KILL QUERY), and reports whether the session was still there.
func KillQuery(tb testing.TB, db Database, id uint64) bool {
	tb.Helper()
	return kill(tb, db, "QUERY", id)
}

func kill(tb testing.TB, db Database, what string, id uint64) bool {
	tb.Helper()
	_, err := db.ExecContext(tb.Context(), fmt.Sprintf("KILL %s %d", what, id))
	if isNumber(err, noSuchSession) {
		return false
	}
	if err != nil {
		tb.Fatalf("KILL %s %d: %v", what, id, err)
	}
	return true
}

// WaitsForLock is the state of a session that waits for an advisory lock.
const WaitsForLock = "User lock"

// AwaitState waits until the session is in the state, as the server's process list shows it.
func AwaitState(tb testing.TB, db Database, id uint64, state string) {
	tb.Helper()
	Eventually(tb, fmt.Sprintf("session %d is in the state %q", id, state), func() bool {
		var now sql.NullString
		err := db.QueryRowContext(tb.Context(), "SELECT STATE FROM information_schema.PROCESSLIST WHERE ID = ?", id).Scan(&now)
		return err == nil && now.String == state
	})
}
