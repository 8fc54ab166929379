package engine

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const makeTable = "CREATE TABLE kept (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, writer INT NOT NULL)"

func exec(t *testing.T, c interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, query string, args ...any) {
	t.Helper()
	_, err := c.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
}

// No committed row is lost and no rolled-back row stays, while readers, single statements and transactions run at the same time.
func TestNoCommittedRowIsLost(t *testing.T) {
	db := open(t, start(t))
	exec(t, db, makeTable)
	const writers, rounds = 4, 60
	stop, stopped := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
				var head sql.NullInt64
				if err := db.QueryRowContext(t.Context(), "SELECT MAX(id) FROM kept").Scan(&head); err != nil {
					stopped <- err
					return
				}
			}
		}
	}()
	done := make(chan error, writers)
	for w := range writers {
		go func() { done <- write(t.Context(), db, w, rounds) }()
	}
	for range writers {
		require.NoError(t, <-done)
	}
	close(stop)
	require.NoError(t, <-stopped)
	var n, ids int
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*), COUNT(DISTINCT id) FROM kept WHERE writer >= 0").Scan(&n, &ids))
	require.Equal(t, writers*rounds*3, n)
	require.Equal(t, n, ids)
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM kept WHERE writer < 0").Scan(&n))
	require.Zero(t, n)
}

// write commits three rows in each round: one in its own statement and two in a transaction. It also rolls back a transaction,
// and fails to insert another row.
func write(ctx context.Context, db *sql.DB, writer, rounds int) error {
	for range rounds {
		if _, err := db.ExecContext(ctx, "INSERT INTO kept (writer) VALUES (?)", writer); err != nil {
			return err
		}
		for _, commit := range []bool{true, false} {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			value := writer
			if !commit {
				value = -1
			}
			if _, err := tx.ExecContext(ctx, "INSERT INTO kept (writer) VALUES (?), (?)", value, value); err != nil {
				return err
			}
			if commit {
				err = tx.Commit()
			} else {
				err = tx.Rollback()
			}
			if err != nil {
				return err
			}
		}
		if _, err := db.ExecContext(ctx, "INSERT INTO kept (id, writer) SELECT MAX(id), -1 FROM kept"); number(err) != 1062 {
			return err
		}
	}
	return nil
}

// A failed statement leaves no open transaction. Such a transaction would restore the tables to their state at that time.
func TestFailedStatementLeavesNothing(t *testing.T) {
	db := open(t, start(t))
	one, other := session(t, db), session(t, db)
	exec(t, one, makeTable)
	exec(t, one, "INSERT INTO kept (id, writer) VALUES (1, 1)")
	_, err := one.ExecContext(t.Context(), "INSERT INTO kept (id, writer) VALUES (1, 1)")
	require.Equal(t, 1062, number(err), "%v", err)
	exec(t, other, "INSERT INTO kept (id, writer) VALUES (2, 2)")
	exec(t, one, "INSERT INTO kept (id, writer) VALUES (3, 1)")
	got, err := rows(t, other, "SELECT id FROM kept ORDER BY id")
	require.NoError(t, err)
	require.Equal(t, []string{"1", "2", "3"}, got)
}

func TestTransactionIsAlone(t *testing.T) {
	db := open(t, start(t))
	owner, other := session(t, db), session(t, db)
	exec(t, owner, makeTable)
	exec(t, other, "SET SESSION innodb_lock_wait_timeout = 1")
	exec(t, owner, "BEGIN")
	exec(t, other, "SELECT COUNT(*) FROM kept") // BEGIN without a table delays no other session
	exec(t, owner, "INSERT INTO kept (writer) VALUES (1)")

	begun := time.Now()
	_, err := other.ExecContext(t.Context(), "SELECT COUNT(*) FROM kept")
	require.Equal(t, 1205, number(err), "%v", err)
	require.GreaterOrEqual(t, time.Since(begun), time.Second)
	// A statement without a table does not wait. Otherwise a session could not release its locks.
	got, err := rows(t, other, "SELECT GET_LOCK('a', 0), RELEASE_LOCK('a'), @@autocommit")
	require.NoError(t, err)
	require.Equal(t, []string{"1|1|1"}, got)

	exec(t, other, "SET SESSION innodb_lock_wait_timeout = 30")
	discard(owner) // closing the connection rolls back
	got, err = rows(t, other, "SELECT COUNT(*) FROM kept")
	require.NoError(t, err)
	require.Equal(t, []string{"0"}, got)
}

func TestTouchesTables(t *testing.T) {
	for query, want := range map[string]bool{
		"SELECT 1":                               false,
		"SELECT GET_LOCK('a', 1), @@version":     false,
		"SELECT IF(@moved, 2, GET_LOCK('a', 1))": false,
		"SET @a = 1":                             false,
		"SET SESSION autocommit = 0":             false,
		"BEGIN":                                  false,
		"START TRANSACTION":                      false,
		"KILL QUERY 1":                           false,
		"no SQL":                                 false,
		"SELECT * FROM t":                        true,
		"SELECT (SELECT MAX(id) FROM t)":         true,
		"SELECT 1 UNION SELECT a FROM t":         true,
		"SET @a = (SELECT MAX(id) FROM t)":       true,
		"INSERT INTO t VALUES (1)":               true,
		"CREATE TABLE t (id INT)":                true,
		"DROP TABLE t":                           true,
		"COMMIT":                                 true,
		"SHOW TABLES":                            true,
		"SELECT 1; SELECT * FROM t":              false, // only the first statement counts, because each runs on its own
		"SELECT * FROM t WHERE id = (SELECT 1) LIMIT 1": true,
	} {
		require.Equal(t, want, touchesTables(t.Context(), query), query)
	}
}
