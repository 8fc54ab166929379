package core_test

import (
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Touches rely on this: to the server a ping is not a statement, but it counts among the session's
// other commands, and restarts its wait_timeout.
func TestPing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t, "--performance-schema=OFF")
		session := openSession(t, openDB(t, own.Database(t)), never)
		ping := func() {
			t.Helper()
			require.NoError(t, session.Do(t.Context(), func(conn *sqlx.Conn) error { return conn.PingContext(t.Context()) }))
		}
		const pings = 50
		first, before := adminCommands(t, session), own.Questions(t)
		for range pings {
			ping()
		}
		assert.Less(t, own.Questions(t)-before, uint64(pings))
		assert.Equal(t, pings, adminCommands(t, session)-first)

		require.NoError(t, session.Do(t.Context(), func(conn *sqlx.Conn) error {
			_, err := conn.ExecContext(t.Context(), "SET SESSION wait_timeout = 6")
			return err
		}))
		for begun := time.Now(); time.Since(begun) < mysqltest.Size(7*time.Second, 14*time.Second, 14*time.Second); {
			serverTime(t, own.Admin(t), 500*time.Millisecond)
			ping()
		}
		if testing.Short() {
			return // TestSessionSettings has wait_timeout, which ends a session that is not touched
		}
		mysqltest.Await(t, session.Lost(), "the end of a session that is not touched")
	})
}

// Pings alone keep an idle session and its lock alive.
func TestTouchesArePings(t *testing.T) {
	if testing.Short() {
		t.Skip("TestTouchesThroughAProxyThatAnswersPings has a session that touches keep, TestPing has the pings")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		admin := own.Admin(t)
		db := openDB(t, own.Database(t))
		session := openSession(t, db, short)
		lock := mustLock(t, session, lockName(db))
		pinged := func() bool { // and what it takes to find out that they arrive
			return adminCommands(t, session) >= 3
		}
		require.Eventually(t, pinged, patience, time.Second)
		var before, after uint64
		for range 2 { // the first one may have the check that the question above asks for
			before = own.Questions(t)
			timer := time.NewTimer(mysqltest.Size(short, 2*short, 3*short))
			select {
			case <-timer.C:
			case <-session.Lost():
			}
			after = own.Questions(t)
			timer.Stop()
		}
		require.NoError(t, session.Err())
		require.Equal(t, session.ID(), holder(t, admin, lock.Name()))
		assert.LessOrEqual(t, after-before-1, uint64(1), "a check each minute, at most, and no other statement")
	})
}

// If a proxy answers pings itself, pings keep no session alive: touches stay statements.
func TestTouchesThroughAProxyThatAnswersPings(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		proxy := s.Multiplexer(t, 1) // all statements reach one session
		proxy.AnswersPings()
		db := openDB(t, proxy.Config(config))
		session := openSession(t, db, short)
		lock := mustLock(t, session, lockName(db))
		admin := s.Admin(t)
		serverTime(t, admin, mysqltest.Size(short+time.Second, 3*short, 4*short))
		require.NoError(t, lock.Err())
		require.Equal(t, session.ID(), holder(t, admin, lock.Name()))
	})
}

// If a session's own statements release a lock, the next touch notices it.
func TestTouchAfterAStatement(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t))
		session := openSession(t, db, short)
		lock := mustLock(t, session, lockName(db))
		if !testing.Short() {
			require.Eventually(t, func() bool { return adminCommands(t, session) > 3 }, 2*patience, short)
		}
		require.Equal(t, 1, value[int](t, session, "SELECT RELEASE_LOCK(?)", lock.Name()))
		released := time.Now()
		mysqltest.Await(t, lock.Lost(), "the loss")
		require.Less(t, time.Since(released), 2*short)
		require.NoError(t, session.Err())
	})
}

// An idle session needs no more statements than touches, five in two IdleTimeouts,
// although the first touch also finds out whether pings arrive.
func TestTouchesAreFew(t *testing.T) {
	if testing.Short() {
		t.Skip("counts for half a minute; TestTouchAfterAStatement has touches")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := openDB(t, own.Database(t))
		count := func(idle time.Duration) (touches int, over time.Duration) {
			session := openSession(t, db, idle)
			mustLock(t, session, lockName(db))
			before, begun := own.Questions(t), time.Now()
			timer := time.NewTimer(2 * short)
			defer timer.Stop()
			select {
			case <-timer.C:
			case <-session.Lost():
			}
			statements := own.Questions(t) - before - 1
			over = time.Since(begun)
			require.NoError(t, session.Close())
			return int(statements), over
		}
		touches, _ := count(never)
		assert.Zero(t, touches)
		touches, over := count(short)
		assert.GreaterOrEqual(t, touches, 3)
		// The end of the previous session may count as a statement of this time.
		assert.LessOrEqual(t, touches, int(over/(short*2/5))+1)
	})
}

// adminCommands returns how many commands of the session were not statements: pings.
func adminCommands(tb testing.TB, session *core.Session) (n int) {
	tb.Helper()
	require.NoError(tb, session.Do(tb.Context(), func(conn *sqlx.Conn) error {
		return conn.QueryRowxContext(tb.Context(), "SHOW SESSION STATUS LIKE 'Com_admin_commands'").Scan(new(string), &n)
	}))
	return n
}
