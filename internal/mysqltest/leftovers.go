package mysqltest

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"
)

// sessionsQuery lists the sessions whose default database is the test's.
const sessionsQuery = `
	SELECT CONCAT_WS(' ', 'session', ID, 'of', USER, COMMAND, TIME, 's', STATE, INFO)
	FROM information_schema.PROCESSLIST
	WHERE DB = ? AND ID <> CONNECTION_ID()`

// lockQueries list the advisory locks whose names contain the database's name, as the names of all locks of mqnotify do. The
// session that holds one may have no default database. Which query works depends on the server.
var lockQueries = []string{
	`SELECT CONCAT_WS(' ', 'advisory lock', l.OBJECT_NAME, 'of session', t.PROCESSLIST_ID)
	FROM performance_schema.metadata_locks l
	LEFT JOIN performance_schema.threads t ON t.THREAD_ID = l.OWNER_THREAD_ID
	WHERE l.OBJECT_TYPE = 'USER LEVEL LOCK' AND LOCATE(?, l.OBJECT_NAME) > 0`,
	`SELECT CONCAT_WS(' ', 'advisory lock', TABLE_SCHEMA, 'of session', THREAD_ID)
	FROM information_schema.METADATA_LOCK_INFO
	WHERE LOCK_TYPE = 'User lock' AND LOCATE(?, TABLE_SCHEMA) > 0`,
}

// notText is the number of the error with which MySQL refuses to list the sessions while one of them, of any test, runs a
// statement that is not UTF-8 or has a character of four bytes. A later attempt succeeds.
const notText = 3854

// leftovers describes what still uses the database. It checks only the sessions where it can see no advisory locks: on MariaDB
// without the plugin metadata_lock_info, and with an account that lacks the privilege.
func leftovers(ctx context.Context, db *sql.DB, database string) ([]string, error) {
	left, err := texts(ctx, db, sessionsQuery, database)
	if isNumber(err, notText) {
		return []string{err.Error()}, nil
	}
	if err != nil || len(left) != 0 { // the locks of these sessions go with them
		return left, err
	}
	for _, query := range lockQueries {
		locks, err := texts(ctx, db, query, database)
		if err != nil && !notShown(err) {
			return nil, err
		}
		left = append(left, locks...)
	}
	return left, nil
}

// notShown reports whether the error says that the table does not exist or that access to it is denied.
func notShown(err error) bool {
	var failure *mysql.MySQLError
	if !errors.As(err, &failure) {
		return false
	}
	switch failure.Number {
	case 1109, 1146, // unknown table
		1044, 1142, 1227: // access denied
		return true
	}
	return false
}

func texts(ctx context.Context, db *sql.DB, query, argument string) ([]string, error) {
	rows, err := db.QueryContext(ctx, query, argument)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var all []string
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return nil, fmt.Errorf("scan: %w", err)
		}
		all = append(all, text)
	}
	return all, rows.Err()
}
