package consumer

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// An account that has no PROCESS, but may execute mqnotify_open_writers, sees the open transactions: a row that commits
// late is not lost, however late that is, and the offset stays before it. The account sees no statement of other sessions.
func TestOpenWritersRoutine(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin := openConfig(t, config, "orders")
		mysqltest.Exec(t, admin.Pool(), schema.OpenWriters())
		reader, err := notify.OpenConfig(s.User(t, config, "SELECT ON "+config.DBName+".orders",
			"SELECT, INSERT, UPDATE ON "+config.DBName+".mqnotify_offset",
			"SELECT, INSERT, UPDATE ON "+config.DBName+".mqnotify_dead_letter",
			"EXECUTE ON PROCEDURE "+config.DBName+"."+schema.OpenWritersRoutine))
		require.NoError(t, err)
		defer func() { require.NoError(t, reader.Close()) }()
		k, err := New(reader, "orders", Options{})
		require.NoError(t, err)
		way, grace, err := k.Writers(t.Context())
		require.NoError(t, err)
		require.Equal(t, writersRoutine, way)
		require.Zero(t, grace)

		polls := newPolls()
		var got collected
		c := run(t, reader, "orders", Options{Group: "g", From: "beginning", FlushInterval: -1, wrap: polls.wrap}, got.handler())
		conn := newConn(t, admin)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, admin, "orders", "two")
		got.waitFor(t, "two")
		polls.wait(t)
		require.Zero(t, stored(t, admin, "g"))
		eventually(t, func() bool {
			mysqltest.Window(t, 150*time.Millisecond) // the server refreshes the view only if nobody has read it for 100 ms
			return showsWriters(t, reader)
		}, "no transaction that writes is shown")
		onConn(t, conn, "COMMIT")
		got.waitFor(t, "two", "late")
		eventually(t, func() bool { return stored(t, admin, "g") == 2 }, "the gap does not close")
		require.NoError(t, c.end(t))
	})
}

// showsWriters reports whether the account sees a transaction that writes. It fails the test if the account sees a statement.
func showsWriters(t *testing.T, reader *notify.DB) (seen bool) {
	t.Helper()
	rows, err := reader.Pool().QueryContext(t.Context(), "CALL mqnotify_open_writers(7)")
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, thread uint64
		var started, statement string
		var writes bool
		require.NoError(t, rows.Scan(&id, &thread, &started, &statement, &writes))
		require.Empty(t, statement)
		seen = seen || writes
	}
	require.NoError(t, rows.Err())
	return seen
}

// Consumers that share a session share a query of the view, but none takes an answer that is older than its question.
func TestViewOfASharedSession(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s.Start(t)) // no other test makes the view stale
		session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, session.Close()) }()
		conn := newConn(t, db)
		one, err := newInnoDBTrx(t.Context(), db, session, writersInnoDBTrx)
		require.NoError(t, err)
		other, err := newInnoDBTrx(t.Context(), db, session, writersInnoDBTrx)
		require.NoError(t, err)
		answer := func(i *innodbTrx) (writers open) {
			eventually(t, func() bool {
				writers, err = i.open(t.Context())
				require.True(t, err == nil || errors.Is(err, errStale), err)
				return err == nil
			}, "the view stays stale")
			return writers
		}
		for range 5 {
			answer(one)
			onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
			if writers, err := other.open(t.Context()); err == nil { // this took so long that it could query
				require.NotEmpty(t, writers, "an old view counts as fresh")
			} else {
				require.ErrorIs(t, err, errStale)
				require.NotEmpty(t, answer(one))
				queries := one.begun
				require.NotEmpty(t, answer(other))
				require.Equal(t, queries, other.begun, "it has queried again")
			}
			onConn(t, conn, "ROLLBACK")
			require.Empty(t, answer(other))
		}
	})
}

// A consumer of an account that has lost PROCESS begins, and goes on, without the view that others of its DB still read.
func TestPrivilegeOfTheViewIsLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin := openConfig(t, config, "orders")
		insert(t, admin, "orders", "one")
		account := s.User(t, config, "ALL ON "+config.DBName+".*", "PROCESS ON *.*")
		db := attach(t, account)
		var first, second collected
		options := Options{Group: "first", From: "beginning", Grace: time.Millisecond, FlushInterval: -1}
		c := run(t, db, "orders", options, first.handler())
		first.waitFor(t, "one")
		do(t, admin, "REVOKE PROCESS ON *.* FROM '"+account.User+"'")
		options.Group = "second"
		k := run(t, db, "orders", options, second.handler())
		second.waitFor(t, "one")
		conn := newConn(t, admin)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
		insert(t, admin, "orders", "three")
		eventually(t, func() bool { return stored(t, admin, "first") == 3 && stored(t, admin, "second") == 3 }, "a consumer does not go on")
		require.NoError(t, c.end(t))
		require.NoError(t, k.end(t))
	})
}
