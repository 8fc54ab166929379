package server

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestPredicates(t *testing.T) {
	number := func(n uint16) error { return &mysql.MySQLError{Number: n} }
	type is struct{ lost, readOnly, noPrivilege, retryable, busy bool }
	for _, test := range []struct {
		err  error
		want is
	}{
		{nil, is{}},
		{errors.New("read-only: lost connection, deadlock, access denied"), is{}}, // texts decide nothing
		{context.Canceled, is{}},
		{driver.ErrBadConn, is{lost: true}},
		{mysql.ErrInvalidConn, is{lost: true}},
		{sql.ErrConnDone, is{lost: true}},
		{io.EOF, is{lost: true}},
		{io.ErrUnexpectedEOF, is{lost: true}},
		{&net.OpError{Op: "dial", Err: errors.New("refused")}, is{lost: true}},
		{number(ErrServerShutdown), is{lost: true}},
		{number(ErrConnectionKilled), is{lost: true}},
		{number(ErrIdleTimeout), is{lost: true}},
		{number(ErrQueryInterrupted), is{lost: true}},
		{number(ErrNetRead), is{lost: true}},
		{number(ErrNetReadInterrupted), is{lost: true}},
		{number(ErrNetWrite), is{lost: true}},
		{number(ErrNetWriteInterrupted), is{lost: true}},
		{number(ErrOptionPreventsWrite), is{readOnly: true}},
		{number(ErrReadOnlyTransaction), is{readOnly: true}},
		{number(ErrReadOnlyMode), is{readOnly: true}},
		{number(ErrTableReadOnly), is{readOnly: true}},
		{number(ErrSchemaReadOnly), is{readOnly: true}},
		{number(2013), is{lost: true}},
		{number(ErrNoBackend), is{busy: true}},
		{number(ErrDBAccessDenied), is{noPrivilege: true}},
		{number(ErrTableAccessDenied), is{noPrivilege: true}},
		{number(ErrColumnAccessDenied), is{noPrivilege: true}},
		{number(ErrSpecificAccess), is{noPrivilege: true}},
		{number(ErrDeadlock), is{retryable: true}},
		{number(ErrLockWaitTimeout), is{retryable: true}},
		{number(ErrLockNoWait), is{retryable: true}},
		{number(ErrTableDefChanged), is{retryable: true}},
		{number(ErrRolledBackInCommit), is{retryable: true}},
		{number(ErrNeedsPrepare), is{retryable: true}},
		{number(ErrTooManyConnections), is{busy: true}},
		{number(ErrAccountLimit), is{busy: true}},
		{number(ErrTooManyStatements), is{busy: true}},
		{number(ErrNoThread), is{busy: true}},
		{number(ErrOfflineMode), is{busy: true}},
		{number(ErrGroupState), is{busy: true}},
		{number(ErrGroupBefore), is{busy: true}},
		{number(ErrGroupAfter), is{busy: true}},
		{number(ErrGroupStops), is{busy: true}},
		{number(ErrDuplicate), is{}},
		{number(ErrAccessDenied), is{}},
		{number(0), is{}},
	} {
		for _, err := range []error{test.err, fmt.Errorf("wrapped: %w", test.err), errors.Join(errors.New("another"), test.err)} {
			if test.err == nil {
				err = nil
			}
			assert.Equal(t, test.want, is{ConnectionLost(err), ReadOnly(err), NoPrivilege(err), Retryable(err), Busy(err)}, "%v", err)
		}
	}
}

func TestNumber(t *testing.T) {
	assert.Zero(t, Number(nil))
	assert.Zero(t, Number(io.EOF))
	assert.EqualValues(t, 1213, Number(fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: 1213})))
	assert.True(t, Is(&mysql.MySQLError{Number: 1213}, 1205, 1213))
	assert.False(t, Is(&mysql.MySQLError{Number: 1213}, 1205))
	assert.False(t, Is(&mysql.MySQLError{Number: 1213}))
	assert.False(t, Is(io.EOF, 0), "no server said it")
}

// A server that takes no further connection is busy, whatever the statement is. A refused value is no such error.
func TestFullAndRefused(t *testing.T) {
	for number, want := range map[uint16][3]bool{ // full, busy, refused
		ErrTooManyConnections: {true, true, false},
		ErrOfflineMode:        {true, true, false},
		ErrDiskFull:           {false, true, false},
		ErrDataTooLong:        {false, false, true},
		ErrConstraintFailed:   {false, false, true},
		ErrDeadlock:           {false, false, false},
	} {
		err := fmt.Errorf("insert: %w", &mysql.MySQLError{Number: number})
		assert.Equal(t, want, [3]bool{Full(err), Busy(err), Refused(err)}, "%d", number)
	}
	assert.False(t, Full(nil) || Refused(nil))
}

func TestPermanent(t *testing.T) {
	for number, want := range map[uint16]bool{
		ErrDataTooLong: true, ErrTableAccessDenied: true, ErrDuplicate: true, ErrBadField: true,
		ErrDeadlock: false, ErrOptionPreventsWrite: false, ErrTooManyConnections: false, ErrServerShutdown: false,
		ErrStatementTime: false, ErrExecutionTime: false, ErrTooManyTransactions: false, 2013: false, ErrNoBackend: false,
	} {
		require.Equal(t, want, Permanent(fmt.Errorf("wrapped: %w", &mysql.MySQLError{Number: number})), number)
	}
	require.False(t, Permanent(nil))
	require.False(t, Permanent(mysql.ErrInvalidConn))
}

// These are the answers of real servers.
func TestErrorsOfServers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		root := open(t, config)
		_, err := root.Exec("CREATE TABLE x (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
		require.NoError(t, err)
		_, err = root.Exec("INSERT INTO x VALUES (1, 1)")
		require.NoError(t, err)
		reader := open(t, s.User(t, config, "SELECT (id) ON "+config.DBName+".x"))
		wrong, nowhere := config.Clone(), config.Clone()
		wrong.User, nowhere.DBName = "nobody", config.DBName+"_none"
		denied := s.User(t, config)

		for _, test := range []struct {
			db        *sql.DB
			statement string
			number    []uint16
			noRight   bool
		}{
			{reader, "INSERT INTO x VALUES (2, 2)", []uint16{ErrTableAccessDenied}, true},
			{reader, "SELECT n FROM x", []uint16{ErrColumnAccessDenied}, true},
			{reader, "SET GLOBAL long_query_time = 1", []uint16{ErrSpecificAccess}, true},
			{open(t, denied), "DO 1", []uint16{ErrDBAccessDenied}, true},
			{open(t, wrong), "DO 1", []uint16{ErrAccessDenied, 1698}, false},
			{open(t, nowhere), "DO 1", []uint16{ErrBadDatabase}, false},
			{root, "SELECT y FROM x", []uint16{ErrBadField}, false},
			{root, "SELECT * FROM y", []uint16{ErrNoSuchTable}, false},
			{root, "INSERT INTO x VALUES (1, 1)", []uint16{ErrDuplicate}, false},
			{root, "SELEKT", []uint16{ErrParse}, false},
			{root, "SELECT @@no_such_variable", []uint16{ErrUnknownVariable}, false},
		} {
			_, err := test.db.ExecContext(t.Context(), test.statement)
			require.Error(t, err, test.statement)
			assert.Contains(t, test.number, Number(err), err)
			assert.Equal(t, test.noRight, NoPrivilege(err), err)
			assert.False(t, ConnectionLost(err), err)
		}

		tx, err := root.BeginTx(t.Context(), &sql.TxOptions{ReadOnly: true})
		require.NoError(t, err)
		_, err = tx.Exec("UPDATE x SET n = 2")
		assert.True(t, ReadOnly(err), err)
		require.NoError(t, tx.Rollback())

		// A locked row, for a session that waits and for one that does not.
		holder, err := root.Begin()
		require.NoError(t, err)
		_, err = holder.Exec("UPDATE x SET n = 3")
		require.NoError(t, err)
		_, err = root.Exec("SELECT * FROM x WHERE id = 1 FOR UPDATE NOWAIT")
		assert.True(t, Retryable(err), err)
		waiter, err := root.Conn(t.Context())
		require.NoError(t, err)
		_, err = waiter.ExecContext(t.Context(), "SET SESSION innodb_lock_wait_timeout = 1")
		require.NoError(t, err)
		_, err = waiter.ExecContext(t.Context(), "UPDATE x SET n = 4")
		assert.True(t, Is(err, ErrLockWaitTimeout) && Retryable(err), err)
		require.NoError(t, waiter.Close())
		require.NoError(t, holder.Rollback())

		// A killed connection: the running statement, and the next one.
		conn, err := root.Conn(t.Context())
		require.NoError(t, err)
		var id int
		require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
		_, err = conn.ExecContext(t.Context(), fmt.Sprintf("KILL %d", id))
		assert.True(t, ConnectionLost(err), err)
		_, err = conn.ExecContext(t.Context(), "DO 1")
		assert.True(t, ConnectionLost(err), err)
		_ = conn.Close()
	})
}
