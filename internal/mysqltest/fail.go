package mysqltest

import (
	"fmt"
	"testing"
)

// FailWith makes every UPDATE of the table's rows fail with the server error of this number, until the test calls stop. tries
// returns how many rows failed to update so far.
func FailWith(tb testing.TB, db Database, table string, number int) (tries func() int, stop func()) {
	tb.Helper()
	ExecAll(tb, db, "CREATE TABLE mq_tries (id INT) ENGINE=MyISAM", // keeps its rows when the statement fails
		fmt.Sprintf("CREATE TRIGGER mq_fails BEFORE UPDATE ON %s FOR EACH ROW BEGIN INSERT INTO mq_tries VALUES (1);"+
			" SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = %d, MESSAGE_TEXT = 'a failure for the test'; END", table, number))
	return func() int { tb.Helper(); return Value[int](tb, db, "SELECT COUNT(*) FROM mq_tries") },
		func() { tb.Helper(); ExecAll(tb, db, "DROP TRIGGER mq_fails", "DROP TABLE mq_tries") }
}
