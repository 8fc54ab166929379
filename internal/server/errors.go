package server

import (
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"net"
	"slices"

	"github.com/go-sql-driver/mysql"
)

// Error numbers of MySQL and MariaDB on which code decides.
const (
	ErrCheckRead              = 1020 // MariaDB: a row has changed since the transaction's snapshot
	ErrDiskFull               = 1021
	ErrTableReadOnly          = 1036 // --innodb-read-only
	ErrOutOfMemory            = 1037
	ErrOutOfSortMemory        = 1038
	ErrTooManyConnections     = 1040
	ErrOutOfResources         = 1041
	ErrDBAccessDenied         = 1044
	ErrAccessDenied           = 1045
	ErrNotPrepared            = 1047 // a Galera node that is not in sync with the others
	ErrBadNull                = 1048 // NULL in a column that is NOT NULL
	ErrBadDatabase            = 1049
	ErrServerShutdown         = 1053
	ErrBadField               = 1054
	ErrDuplicate              = 1062
	ErrParse                  = 1064
	ErrNoSuchThread           = 1094 // to KILL
	ErrUnknown                = 1105
	ErrUnknownTable           = 1109
	ErrTableFull              = 1114 // often a full disk
	ErrNoThread               = 1135
	ErrTableAccessDenied      = 1142
	ErrColumnAccessDenied     = 1143
	ErrNoSuchTable            = 1146
	ErrPacketTooLarge         = 1153
	ErrNetRead                = 1158
	ErrNetReadInterrupted     = 1159 // the server waited too long for the client
	ErrNetWrite               = 1160
	ErrNetWriteInterrupted    = 1161
	ErrErrorDuringCommit      = 1180 // a Galera node that has left the others, for example
	ErrUnknownVariable        = 1193
	ErrTooManyUserConnections = 1203
	ErrLockWaitTimeout        = 1205
	ErrLockTableFull          = 1206
	ErrDeadlock               = 1213
	ErrAccountLimit           = 1226 // a limit of the account, such as MAX_USER_CONNECTIONS
	ErrSpecificAccess         = 1227
	ErrNotSupportedYet        = 1235
	ErrOutOfRange             = 1264
	ErrOptionPreventsWrite    = 1290 // --read-only
	ErrRoutineExists          = 1304
	ErrNoRoutine              = 1305
	ErrQueryInterrupted       = 1317
	ErrTriggerExists          = 1359
	ErrNoDefault              = 1364
	ErrWrongValue             = 1366 // a text that is not in the column's character set, for example
	ErrRoutineDenied          = 1370 // to call, change or drop it
	ErrDataTooLong            = 1406
	ErrTableDefChanged        = 1412
	ErrBinlogNeedsSuper       = 1419 // to make a trigger while the binary log is on
	ErrNoSuchDefiner          = 1449
	ErrNoReferencedRow        = 1452 // a foreign key without its row
	ErrTooManyStatements      = 1461 // max_prepared_stmt_count
	ErrSystemDatabase         = 1465 // no trigger can be made there
	ErrNotInsertable          = 1471 // a view that accepts no rows
	ErrNeedsPrepare           = 1615
	ErrTooManyTransactions    = 1637
	ErrSignal                 = 1644 // a trigger of the user refuses a row
	ErrReadOnlyTransaction    = 1792
	ErrReadOnlyMode           = 1836
	ErrEngineReadOnly         = 1874
	ErrConnectionKilled       = 1927 // MariaDB
	ErrOfflineMode            = 3032
	ErrUserLockDeadlock       = 3058
	ErrGTIDModeOff            = 3062 // a wait for a GTID with gtid_mode=OFF
	ErrHookFailed             = 3100 // a server that lost the others of its group
	ErrRolledBackInCommit     = 3101 // another server of the group has changed the same row before
	ErrInvalidJSON            = 3140 // MySQL
	ErrLockNoWait             = 3572
	ErrGroupState             = 3796 // group_replication_consistency: the server is not part of its group yet
	ErrGroupBefore            = 3797 // it could not wait for earlier transactions of the group
	ErrGroupAfter             = 3798 // it could not wait for earlier transactions on the others
	ErrGroupStops             = 3799
	ErrCheckViolated          = 3819 // MySQL
	ErrConvertString          = 3854 // a text that the column's character set can't represent
	ErrStatementTime          = 1969 // MariaDB's max_statement_time
	ErrExecutionTime          = 3024 // MySQL's max_execution_time
	ErrSchemaReadOnly         = 3989 // MySQL's ALTER DATABASE ... READ ONLY = 1
	ErrConstraintFailed       = 4025 // MariaDB
	ErrIdleTimeout            = 4031 // MySQL sends it before it closes an idle connection
	ErrNoBackend              = 9001 // ProxySQL reaches no server
)

// Number returns the server's error number in err, or 0 if err is not from a server.
func Number(err error) uint16 {
	var sqlErr *mysql.MySQLError
	if errors.As(err, &sqlErr) {
		return sqlErr.Number
	}
	return 0
}

// Is reports whether err has one of the server's error numbers.
func Is(err error, numbers ...uint16) bool {
	number := Number(err)
	return number != 0 && slices.Contains(numbers, number)
}

// ReadOnly reports whether err means that the server, or the session, takes no writes.
func ReadOnly(err error) bool {
	return Is(err, ErrOptionPreventsWrite, ErrReadOnlyTransaction, ErrReadOnlyMode, ErrTableReadOnly, ErrEngineReadOnly, ErrSchemaReadOnly)
}

// NoPrivilege reports whether err means that the account lacks a privilege.
func NoPrivilege(err error) bool {
	return Is(err, ErrDBAccessDenied, ErrTableAccessDenied, ErrColumnAccessDenied, ErrSpecificAccess)
}

// ConnectionLost reports whether err means that the connection is lost or
// can't be trusted, so that the same work may succeed on another one.
func ConnectionLost(err error) bool {
	if err == nil {
		return false
	}
	var netErr net.Error
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrInvalidConn) ||
		errors.Is(err, sql.ErrConnDone) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.As(err, &netErr) || Relayed(err) ||
		Is(err, ErrServerShutdown, ErrConnectionKilled, ErrIdleTimeout, ErrQueryInterrupted,
			ErrNetRead, ErrNetReadInterrupted, ErrNetWrite, ErrNetWriteInterrupted)
}

// Relayed reports whether err is a client's error, such as 2013, that a proxy passes on as an error of the server: the proxy has lost its
// connection to the server.
func Relayed(err error) bool {
	number := Number(err)
	return number >= 2000 && number < 3000
}

// Busy reports whether err means that the server accepts no work now, and may accept it later.
func Busy(err error) bool {
	return Is(err, ErrTooManyConnections, ErrTooManyUserConnections, ErrAccountLimit, ErrOfflineMode, ErrTooManyStatements, ErrNoThread,
		ErrNotPrepared, ErrGroupState, ErrGroupBefore, ErrGroupAfter, ErrGroupStops, ErrHookFailed, ErrErrorDuringCommit,
		ErrNoBackend, ErrDiskFull, ErrTableFull, ErrLockTableFull, ErrOutOfMemory, ErrOutOfSortMemory, ErrOutOfResources)
}

// Full reports whether err means that the server takes no further connection now, or none at all. Unlike some errors of Busy it has
// nothing to do with the statement.
func Full(err error) bool {
	return Is(err, ErrTooManyConnections, ErrTooManyUserConnections, ErrAccountLimit, ErrNoThread, ErrOfflineMode, ErrNotPrepared, ErrNoBackend)
}

// Permanent reports whether err is an error of the server that stays until a person changes something. Callers exclude a duplicate
// key and a missing table where these may pass.
func Permanent(err error) bool {
	number := Number(err)
	passing := Is(err, ErrStatementTime, ErrExecutionTime, ErrTooManyTransactions)
	return number != 0 && !passing && !ConnectionLost(err) && !Retryable(err) && !ReadOnly(err) && !Busy(err)
}

// Refused reports whether err means that a table does not accept the values of a row.
func Refused(err error) bool {
	return Is(err, ErrDataTooLong, ErrWrongValue, ErrBadNull, ErrOutOfRange, ErrInvalidJSON, ErrDuplicate, ErrSignal, ErrCheckViolated, ErrConstraintFailed, ErrNoReferencedRow)
}

// Retryable reports whether a transaction that failed with err may succeed when it is
// run again from its start on the same connection.
func Retryable(err error) bool {
	return Is(err, ErrLockWaitTimeout, ErrDeadlock, ErrLockNoWait, ErrTableDefChanged, ErrNeedsPrepare, ErrCheckRead, ErrRolledBackInCommit)
}
