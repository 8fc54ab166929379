package doctor

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// oldAfter is the age from which a transaction counts as old in these tests. The server counts ages in whole seconds, so any age
// of at least one second is old.
const oldAfter = time.Millisecond

func examineOld(tb testing.TB, db *notify.DB, topics ...string) findings {
	tb.Helper()
	// The previous examination may still wait for a commit on the server, for up to a second. The server refreshes the view that
	// shows such waits only if no session has read the view for 100 ms.
	for range 40 {
		var waits int
		err := db.Pool().GetContext(tb.Context(), &waits, "SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'")
		if err != nil || waits == 0 { // no wait, or the account may not see the view
			break
		}
		<-time.After(250 * time.Millisecond)
	}
	return examineWith(tb, db, Options{Topics: topics, Old: oldAfter}).of("transactions")
}

// age makes a transaction at least a second old on the server's clock.
const age = "DO SLEEP(1.1)"

func TestOpenTransactions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // of its own, because the check sees the transactions of the whole server
		config, db := initialised(t, s)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE other LIKE orders", "CREATE TABLE untouched LIKE orders")
		says(t, examine(t, db, "orders").only(t, "transactions"), OK, "no open writer", "")

		writer, elsewhere, reader := session(t, db), session(t, db), session(t, db)
		var id uint64
		require.NoError(t, writer.GetContext(t.Context(), &id, "SELECT CONNECTION_ID()"))
		mysqltest.ExecAll(t, elsewhere, "START TRANSACTION", "INSERT INTO other (payload) VALUES ('x')")
		mysqltest.ExecAll(t, reader, "START TRANSACTION", "SELECT * FROM orders")
		mysqltest.ExecAll(t, writer, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')", age)

		says(t, examine(t, db, "orders").only(t, "transactions"), OK, "open writers o", "")
		named := func(found findings) findings {
			var all findings
			for _, r := range found {
				if r.Remedy == fmt.Sprintf("let its program end it, or KILL %d", id) {
					all = append(all, r)
				}
			}
			return all
		}
		found := examineOld(t, db, "orders")
		require.Len(t, named(found), 1, "%v", found)
		says(t, named(found)[0], Warning, fmt.Sprintf("a transaction of session %d (root@", id), "")
		assert.Regexp(t, `is open for [0-9ms]+: ids past its first`, named(found)[0].Text)
		if s.IsMariaDB() { // MariaDB's view of transactions does not show the tables to which they write
			mysqltest.Eventually(t, "two writers, once the server's view no longer shows the previous examination", func() bool {
				return len(examineOld(t, db, "orders")) == 2
			})
		} else {
			assert.Len(t, found, 1, "%v", found)
			says(t, examineOld(t, db, "untouched").only(t, "transactions"), OK, "no open writer of the table", "")
		}

		// Without PROCESS, MySQL reports only the number of writers.
		grants := []string{"SELECT ON " + config.DBName + ".*"}
		if !s.IsMariaDB() {
			grants = append(grants, "SELECT ON performance_schema.metadata_locks", "SELECT ON performance_schema.threads")
		}
		limited := examineOld(t, open(t, s.User(t, config, grants...)), "orders")
		if s.IsMariaDB() {
			says(t, limited.only(t, "transactions"), OK, "none that this account can see", "")
		} else {
			says(t, limited.only(t, "transactions"), OK, "open writers of the table: 1; their age is unknown", "")
		}
		mysqltest.ExecAll(t, writer, "ROLLBACK")
		mysqltest.ExecAll(t, elsewhere, "ROLLBACK")
		mysqltest.ExecAll(t, reader, "ROLLBACK")
	})
}

// MySQL can't list its transactions while a statement with binary data runs. The check waits until that statement ends.
func TestTransactionsDuringABinaryStatement(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if shared.IsMariaDB() {
			t.Skip("MariaDB shows such a statement with question marks")
		}
		s := shared.Start(t, "--performance-schema-error-size=10000") // the test reads the counter of error 3854
		_, db := initialised(t, s)
		admin := s.Admin(t)
		count := func(query string) (n int) {
			require.NoError(t, admin.QueryRow(query).Scan(&n))
			return n
		}
		holder, busy := session(t, db), session(t, db)
		mysqltest.ExecAll(t, holder, "CREATE TABLE other LIKE orders", "SELECT GET_LOCK('bytes', 0)")
		mysqltest.ExecAll(t, busy, "START TRANSACTION", "INSERT INTO other (payload) VALUES ('x')") // without a write the transaction would not be listed
		ended := make(chan error, 1)
		go func() {
			_, err := busy.ExecContext(t.Context(), "SELECT GET_LOCK('bytes', 60), RELEASE_LOCK('bytes'), _binary'\xff\xfe\x80'")
			ended <- err
		}()
		require.Eventually(t, func() bool {
			return count("SELECT COUNT(*) FROM performance_schema.threads WHERE PROCESSLIST_STATE = 'User lock'") == 1
		}, time.Minute, 10*time.Millisecond)

		const refused = "SELECT SUM_ERROR_RAISED FROM performance_schema.events_errors_summary_global_by_error WHERE ERROR_NUMBER = 3854"
		before := count(refused)
		found := make(chan findings, 1)
		go func() {
			found <- slices.Collect(Examine(t.Context(), db, Options{Topics: []string{"orders"}, Timeout: time.Minute}))
		}()
		require.Eventually(t, func() bool { return count(refused) > before }, time.Minute, 10*time.Millisecond)
		mysqltest.ExecAll(t, holder, "DO RELEASE_LOCK('bytes')")
		require.NoError(t, <-ended)
		says(t, (<-found).only(t, "transactions"), OK, "no open writer", "")
		mysqltest.ExecAll(t, busy, "ROLLBACK")
	})
}

// status shows the warnings and problems of this check, but no result that is OK.
func TestForStatus(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		_, db := initialised(t, s)
		old := func() findings {
			return findings(slices.Collect(ForStatus(t.Context(), db, Options{Topics: []string{"orders"}, Old: oldAfter, Timeout: time.Minute})))
		}
		require.Empty(t, old())
		writer := session(t, db)
		mysqltest.ExecAll(t, writer, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')", age)
		found := old()
		require.Len(t, found, 1, "%v", found)
		says(t, found.only(t, "transactions"), Warning, "a transaction of session", "KILL")
		mysqltest.ExecAll(t, writer, "ROLLBACK")

		mysqltest.ExecAll(t, db.Pool(), "DROP TABLE orders")
		says(t, old().only(t, "table"), Problem, "no table", "")
	})
}

func TestPreparedTransactions(t *testing.T) {
	mysqltest.NotShort(t, "TestOpenTransactions")
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // of its own, because XA RECOVER shows the transactions of the whole server
		config, db := initialised(t, s)
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE other LIKE orders")
		prepare := func(xid string) {
			conn, err := db.Pool().Connx(t.Context())
			require.NoError(t, err)
			mysqltest.ExecAll(t, conn, "XA START "+xid, "INSERT INTO orders (payload) VALUES ('x')", "XA END "+xid, "XA PREPARE "+xid)
			discard(conn)
		}
		prepare(`'it''s','\0b',7`)
		mysqltest.ExecAll(t, db.Pool(), age)
		found := examineOld(t, db, "orders")
		const first = "X'69742773',X'0062',7"
		says(t, found.only(t, "transactions"), Warning, "a prepared XA transaction that no session has is open for", "XA COMMIT or XA ROLLBACK "+first)
		if !s.IsMariaDB() {
			says(t, examineOld(t, db, "other").only(t, "transactions"), OK, "no open writer of the table", "")
		}

		few := examineOld(t, open(t, s.User(t, config, "SELECT ON "+config.DBName+".*")), "orders").only(t, "transactions")
		if s.IsMariaDB() { // MariaDB shows them to every account
			says(t, few, Warning, "prepared XA transactions on the server: 1, of unknown age", first)
		} else {
			says(t, few, OK, "none that this account can see", "")
		}
		process := open(t, s.User(t, config, "SELECT ON "+config.DBName+".*", "PROCESS ON *.*"))
		names := first
		if !s.IsMariaDB() {
			names = "XA_RECOVER_ADMIN"
		}
		says(t, examineOld(t, process, "orders").only(t, "transactions"), Warning, "a prepared XA transaction", names)

		prepare("'two'")
		mysqltest.ExecAll(t, db.Pool(), age)
		found = examineOld(t, db, "orders")
		assert.Len(t, found, 2, "%v", found)
		for _, r := range found {
			says(t, r, Warning, "a prepared XA transaction", "one of XA RECOVER's: ")
			assert.Contains(t, r.Remedy, first)
			assert.Contains(t, r.Remedy, "X'74776F',X'',1")
		}

		// The statements in the remedies work.
		mysqltest.ExecAll(t, db.Pool(), "XA ROLLBACK "+first, "XA ROLLBACK X'74776F',X'',1")
		says(t, examineOld(t, db, "orders").only(t, "transactions"), OK, "no open writer", "")
	})
}

func TestPinnedSession(t *testing.T) {
	running := transaction{Session: 7, Account: "a@h", Seconds: 5}
	elsewhere := transaction{Session: 8, Account: "a@h", Seconds: 90}
	prepared := transaction{Seconds: 60}
	open := []transaction{elsewhere, prepared, running}
	for _, test := range []struct {
		name    string
		holders []holder
		want    []transaction
	}{
		{"nobody", nil, nil},
		{"a session", []holder{{1, 1, 7}}, []transaction{running}},
		{"a prepared transaction whose session is gone", []holder{{1, 1, 0}}, []transaction{prepared}},
		{"one whose session has nothing open any more", []holder{{1, 1, 9}}, []transaction{prepared}},
		{"one whose session has gone on to another transaction", []holder{{1, 1, 7}, {1, 2, 7}}, []transaction{prepared, running}},
	} {
		assert.Equal(t, test.want, pinning(open, test.holders), test.name)
	}
}

func TestEndPrepared(t *testing.T) {
	assert.Contains(t, endPrepared(nil), "XA RECOVER names it")
	assert.Equal(t, "XA COMMIT or XA ROLLBACK a", endPrepared([]string{"a"}))
	many := []string{"a", "b", "c", "d", "e", "f", "g"}
	assert.Equal(t, "XA COMMIT or XA ROLLBACK one of XA RECOVER's: a or b or c or d or e or ...", endPrepared(many))
	assert.Equal(t, "f", many[5], "endPrepared does not change the list")
}
