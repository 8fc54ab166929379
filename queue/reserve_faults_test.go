package queue

import (
	"context"
	"fmt"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// statementRuns returns a function that reports whether such a statement runs in this database, also in a trigger.
func statementRuns(t *testing.T, db *notify.DB, pattern string) func() bool {
	return func() bool {
		return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE ? AND id <> CONNECTION_ID()", pattern) > 0
	}
}

// A reservation does not lock the tasks that it skips, because other workers are about to claim them.
func TestReserveLocksItsOwn(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2", "3", "4")
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET owner = CONCAT('~', UTC_TIMESTAMP(6) + INTERVAL 50 SECOND) WHERE id <= ?", ids[1])
		free := func() (free []uint64) {
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			require.NoError(t, tx.SelectContext(t.Context(), &free, "SELECT id FROM mqnotify_task WHERE id > 0 FOR UPDATE SKIP LOCKED"))
			return free
		}
		// A trigger runs inside the transaction, with its locks: it waits until the test has checked.
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER waits BEFORE UPDATE ON mqnotify_task FOR EACH ROW SET @x = GET_LOCK('"+t.Name()+"', 60)")
		lock := newStore(t, db, true)
		require.NoError(t, lock.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
			_, err := conn.ExecContext(ctx, "DO GET_LOCK(?, 0)", t.Name())
			return err
		}))
		l := newStore(t, db, true)
		reserved := make(chan error, 1)
		go func() { reserved <- l.reserve(context.WithoutCancel(t.Context()), 2) }()
		eventually(t, statementRuns(t, db, "SET @x = GET_LOCK%"), "it reserves nothing")
		assert.Equal(t, []uint64{ids[0], ids[1], ids[4]}, free())
		require.NoError(t, lock.session.Close())
		require.NoError(t, <-reserved)
		assert.Equal(t, ids[2:4], idsOf(l.reserved.tasks))
	})
}

// A worker that does not learn which tasks it has claimed loses its session, and gives them back over the next one.
func TestReservedUnknown(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2")
		l := reserving(t, db, 3)
		first := claims(t, l, 1)
		require.NoError(t, finishAlone(t.Context(), db, first[0])) // so that it asks
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER waits AFTER UPDATE ON mqnotify_task FOR EACH ROW SET @x = GET_LOCK('"+t.Name()+"', 60), @x = RELEASE_LOCK('"+t.Name()+"')")
		lock := newStore(t, db, true)
		try := func(l *store, statement string, args ...any) error {
			return l.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
				_, err := conn.ExecContext(ctx, statement, args...)
				return err
			})
		}
		ask := func(l *store, statement string, args ...any) { require.NoError(t, try(l, statement, args...)) }
		ask(lock, "DO GET_LOCK(?, 0)", t.Name())
		answer := make(chan error, 1)
		go func() {
			l.brief = true
			_, _, err := l.round(context.WithoutCancel(t.Context()), doneOf(first...), 1)
			answer <- err
		}()
		eventually(t, statementRuns(t, db, "SET @x = GET_LOCK%"), "no claim")
		table := newStore(t, db, true)
		ask(table, "SET lock_wait_timeout = 60")
		// This queues behind the claim, and before the worker's question.
		locked := mysqltest.Result(func() error { return try(table, "LOCK TABLES mqnotify_task WRITE") })
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.processlist WHERE db = DATABASE() AND info LIKE 'LOCK TABLES%' AND state LIKE 'Waiting for table%'") > 0
		}, "nobody waits for the table")
		ask(lock, "DO RELEASE_LOCK(?)", t.Name())
		err := <-answer
		require.ErrorIs(t, err, errUnknown)
		assert.Zero(t, server.Number(err), "a passing error of the server's would be taken for an end without a claim")
		assert.False(t, permanent(err))
		require.NoError(t, <-locked)
		ask(table, "UNLOCK TABLES")
		mysqltest.Exec(t, db.Pool(), "DROP TRIGGER waits")
		assert.Equal(t, stateInProgress, claimRowOf(t, db, ids[1]).State)
		some, err := newStore(t, db, true).abandoned(t.Context(), nil)
		require.NoError(t, err)
		assert.True(t, some)
		assert.Equal(t, stateReady, claimRowOf(t, db, ids[1]).State)
	})
}

// If another session has locked a reserved task since, a worker waits for it once; then it skips it.
func TestReservedLocked(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		q := newQueue(t, db, Options{})
		ids := enqueue(t, q, "0", "1", "2")
		l := reserving(t, db, 2)
		retried := 0
		l.retried = func() { retried++ }
		first := claims(t, l, 1)
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.ExecContext(t.Context(), "UPDATE mqnotify_task SET last_error = 'x' WHERE id = ?", ids[1])
		require.NoError(t, err)
		l.brief = true // as the dispatcher has it
		_, _, err = l.round(t.Context(), doneOf(first...), 1)
		require.True(t, server.Is(err, server.ErrLockWaitTimeout), err)
		assert.Equal(t, ids[2:], idsOf(claims(t, l, 1, doneOf(first...)...)))
		assert.Equal(t, stateDone, claimRowOf(t, db, ids[0]).State)
		assert.Zero(t, retried)
	})
}

// partlyTaken is a worker that has reserved three of five tasks, of which another one has claimed two.
func partlyTaken(t *testing.T, s *mysqltest.Server) (db *notify.DB, l, other *store, ids []uint64) {
	t.Helper()
	db, _ = database(t, s)
	ids = enqueue(t, newQueue(t, db, Options{}), "0", "1", "2", "3", "4")
	l, other = reserving(t, db, 3), newStore(t, db, true)
	other.owner = "another"
	require.Len(t, claims(t, other, 2), 2)
	return db, l, other, ids
}

// Tasks that a search for the rest has read and could not claim do not count as claimed.
func TestReservedAndAFailedSearch(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, l, _, ids := partlyTaken(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER fails BEFORE UPDATE ON mqnotify_task FOR EACH ROW"+
			" IF OLD.owner = '' THEN SIGNAL SQLSTATE '45000'; END IF")
		assert.Equal(t, ids[2:3], idsOf(claims(t, l, 3)))
		assert.Equal(t, 2, inState(t, db, stateReady))
	})
}

// If a search for the rest fails in the client, it may have left a transaction open, or have claimed tasks: the session ends, and all
// tasks are given back.
func TestReservedAndAnUnreadableSearch(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		_, l, other, ids := partlyTaken(t, s)
		require.NoError(t, other.do(t.Context(), func(ctx context.Context, conn *sqlx.Conn) error {
			_, err := conn.ExecContext(ctx, "SET sql_mode = ''; UPDATE mqnotify_task SET created_at = 0 WHERE id = ?", ids[3])
			return err
		}))
		claimed, _, err := l.round(t.Context(), nil, 3)
		require.ErrorContains(t, err, fmt.Sprintf("task %d", ids[3]))
		require.Empty(t, claimed)
	})
}

// A task whose retries were taken away while its handler ran fails like any other.
func TestRetriesTakenAway(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s)
		id := enqueue(t, newQueue(t, db, Options{}), "x")[0]
		l := newStore(t, db, true)
		task := claims(t, l, 1)[0]
		mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_task SET retries = 0")
		_, _, err := l.round(t.Context(), []outcome{{held: &held{task: task}, kind: wasFailed}}, 0)
		require.NoError(t, err)
		assert.Equal(t, stateFailed, claimRowOf(t, db, id).State)
	})
}
