package consumer

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// A prepared XA transaction whose session has left is open until another session
// commits it; its row is delivered then.
func TestPreparedXA(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, writers := range []string{writersMetadataLocks, writersInnoDBTrx} {
			if writers == writersMetadataLocks && s.IsMariaDB() {
				continue // metadataLocksNeedMySQL shows why
			}
			t.Run(writers, func(t *testing.T) {
				t.Parallel()
				db := openTopic(t, s)
				xid := "'" + db.Name() + "'"
				polls := newPolls()
				var got collected
				c := run(t, db, "orders", Options{From: "beginning", Writers: writers, wrap: polls.wrap}, got.handler())
				first := newConn(t, db)
				onConn(t, first, "XA START "+xid, "INSERT INTO orders (payload) VALUES ('prepared')")
				insert(t, db, "orders", "two")
				polls.wait(t)
				onConn(t, first, "XA END "+xid, "XA PREPARE "+xid)
				insert(t, db, "orders", "three")
				polls.wait(t)
				leave(first)
				insert(t, db, "orders", "four")
				polls.wait(t)
				got.waitFor(t, "two", "three", "four")
				endXA(t, db, "XA COMMIT "+xid)
				got.waitFor(t, "two", "three", "four", "prepared")
				require.NoError(t, c.end(t))
			})
		}
	})
}

// endXA commits or rolls back a prepared transaction, after the server has released it from its
// session.
func endXA(tb testing.TB, db *notify.DB, statement string) {
	tb.Helper()
	eventually(tb, func() bool {
		_, err := db.Pool().ExecContext(tb.Context(), statement)
		if err != nil {
			require.EqualValues(tb, 1397, number(err), statement) // XAER_NOTA: not yet, or not any more
		}
		return err == nil
	}, "%s", statement)
}

// A transaction has the same name while it runs, when it is prepared, and
// when its session has left, whatever its session did before.
func TestMetadataLockNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MySQL's metadata locks alone are used")
		}
		db := openTopic(t, s)
		session, source := openMetadataLocks(t, db)
		defer func() { require.NoError(t, session.Close()) }()
		open := func() open {
			open, err := source.open(t.Context())
			require.NoError(t, err)
			return open
		}
		const insert = "INSERT INTO orders (payload) VALUES ('x')"
		for earlier := range 3 { // transactions of the session, one right behind the other
			xid := fmt.Sprintf("'%s-%d'", db.Name(), earlier)
			conn := newConn(t, db)
			require.Empty(t, open())
			for range earlier {
				onConn(t, conn, "COMMIT", "START TRANSACTION", insert)
				open()
			}
			onConn(t, conn, "COMMIT", "XA START "+xid, insert)
			running := open()
			onConn(t, conn, "XA END "+xid, "XA PREPARE "+xid)
			prepared := open()
			name := common(running, prepared)
			require.NotEmpty(t, name, "%d earlier: a prepared transaction counts as another one", earlier)
			for range 3 {
				require.NotEmpty(t, common(name, open()))
			}
			leave(conn)
			eventually(t, func() bool {
				return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ?", db.Name()) == 2
			}, "the session does not leave") // the reader's and this one
			require.NotEmpty(t, common(name, open()))
			endXA(t, db, "XA ROLLBACK "+xid)
			require.Empty(t, open())
		}
	})
}

func common(a, b open) open {
	both := make(open)
	for name := range a {
		if _, ok := b[name]; ok {
			both[name] = true
		}
	}
	return both
}

func openMetadataLocks(tb testing.TB, db *notify.DB) (*core.Session, *metadataLocks) {
	tb.Helper()
	topic, err := table.Describe(tb.Context(), db.Pool(), db.Name(), "orders")
	require.NoError(tb, err)
	session, err := core.NewSession(tb.Context(), db, core.SessionOptions{})
	require.NoError(tb, err)
	source, err := newMetadataLocks(tb.Context(), session, topic)
	require.NoError(tb, err)
	return session, source
}

// MariaDB drops the metadata lock of a prepared XA transaction when its
// session leaves, although the transaction is open and its row may still be committed. This is
// why metadata locks are refused there.
func metadataLocksNeedMySQL(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	xid := "'" + db.Name() + "'"
	locks := func() int {
		return mysqltest.Value[int](t, db.Pool(), `SELECT COUNT(*) FROM performance_schema.metadata_locks
				WHERE OBJECT_TYPE = 'TABLE' AND OBJECT_SCHEMA = ? AND OBJECT_NAME = 'orders' AND LOCK_TYPE = 'SHARED_WRITE'`, db.Name())
	}
	conn := newConn(t, db)
	onConn(t, conn, "XA START "+xid, "INSERT INTO orders (payload) VALUES ('x')", "XA END "+xid, "XA PREPARE "+xid)
	require.Equal(t, 1, locks(), "the lock shows while the session lives")
	leave(conn)
	eventually(t, func() bool { return locks() == 0 }, "MariaDB keeps the lock now: metadata locks could be used")
	endXA(t, db, "XA COMMIT "+xid)
	require.Equal(t, []string{"x"}, mysqltest.Values[string](t, db.Pool(), "SELECT payload FROM orders"), "the transaction was open all the while")

	session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
	require.NoError(t, err)
	defer func() { require.NoError(t, session.Close()) }()
	topic, err := table.Describe(t.Context(), db.Pool(), db.Name(), "orders")
	require.NoError(t, err)
	_, _, err = openSource(t.Context(), db, session, topic, writersMetadataLocks, 0)
	require.ErrorIs(t, err, notify.ErrOptions)
	chosen, _, err := openSource(t.Context(), db, session, topic, "", 0)
	require.NoError(t, err)
	require.Equal(t, writersInnoDBTrx, chosen.name())
}
