package engine

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ask returns the first column of the only row, and the time that the query took.
func ask(t *testing.T, c *sql.Conn, query string, args ...any) (sql.NullInt64, time.Duration) {
	t.Helper()
	begun := time.Now()
	var got sql.NullInt64
	require.NoError(t, c.QueryRowContext(t.Context(), query, args...).Scan(&got), query)
	return got, time.Since(begun)
}

func value(n int64) sql.NullInt64 { return sql.NullInt64{Int64: n, Valid: true} }

// waiters waits until n sessions wait for the lock.
func waiters(t *testing.T, e *Engine, name string, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		e.locks.mu.Lock()
		defer e.locks.mu.Unlock()
		return e.locks.held[name] != nil && len(e.locks.held[name].waiters) == n
	}, 30*time.Second, time.Millisecond)
}

func TestLockResults(t *testing.T) {
	db := open(t, start(t))
	holder, other := session(t, db), session(t, db)
	id, _ := ask(t, holder, "SELECT CONNECTION_ID()")
	for _, step := range []struct {
		c     *sql.Conn
		query string
		want  sql.NullInt64
	}{
		{holder, "SELECT IS_FREE_LOCK('a')", value(1)},
		{holder, "SELECT IS_USED_LOCK('a')", sql.NullInt64{}},
		{holder, "SELECT RELEASE_LOCK('a')", sql.NullInt64{}},
		{holder, "SELECT GET_LOCK('a', 1)", value(1)},
		{holder, "SELECT GET_LOCK('a', 0)", value(1)},
		{holder, "SELECT GET_LOCK('b', 0)", value(1)},
		{holder, "SELECT IS_USED_LOCK('a') = CONNECTION_ID()", value(1)},
		{other, "SELECT IS_USED_LOCK('a')", id},
		{other, "SELECT IS_FREE_LOCK('a')", value(0)},
		{other, "SELECT RELEASE_LOCK('a')", value(0)},
		{other, "SELECT GET_LOCK('a', 0)", value(0)},
		{other, "SELECT GET_LOCK('A', 0)", value(0)},
		{holder, "SELECT RELEASE_LOCK('a')", value(1)},
		{other, "SELECT GET_LOCK('a', 0)", value(0)}, // it was taken twice and released once
		{holder, "SELECT RELEASE_LOCK('A')", value(1)},
		{other, "SELECT GET_LOCK('a', 0)", value(1)},
		{holder, "SELECT IF(GET_LOCK('c', 2) = 1, RELEASE_LOCK('b'), NULL)", value(1)},
		{holder, "SELECT RELEASE_ALL_LOCKS()", value(1)},
		{other, "SELECT RELEASE_ALL_LOCKS()", value(1)},
		{other, "SELECT GET_LOCK('a', NULL)", sql.NullInt64{}},
	} {
		got, _ := ask(t, step.c, step.query)
		require.Equal(t, step.want, got, step.query)
	}
}

func TestLockNames(t *testing.T) {
	c := session(t, open(t, start(t)))
	for _, name := range []any{nil, "", strings.Repeat("x", 65)} {
		_, err := c.ExecContext(t.Context(), "SELECT GET_LOCK(?, 0)", name)
		require.Equal(t, 3057, number(err), "%v: %v", name, err)
	}
	got, _ := ask(t, c, "SELECT GET_LOCK(?, 0)", strings.Repeat("ü", 64))
	require.Equal(t, value(1), got)
}

func TestLockTimeouts(t *testing.T) {
	e := start(t)
	db := open(t, e)
	holder, other := session(t, db), session(t, db)
	ask(t, holder, "SELECT GET_LOCK('a', 0)")
	for _, seconds := range []float64{0, 0.2, 1.1} {
		got, took := ask(t, other, "SELECT GET_LOCK('a', ?)", seconds)
		require.Equal(t, value(0), got)
		require.GreaterOrEqual(t, took.Seconds(), seconds)
		require.Less(t, took.Seconds(), seconds+10)
	}
	waiters(t, e, "a", 0)
}

// A session that releases a lock and takes it again in one statement comes after the sessions that already wait. The handshake
// needs this.
func TestLockIsGrantedInOrder(t *testing.T) {
	e := start(t)
	db := open(t, e)
	const sessions, rounds = 3, 20
	turns := make(chan int, sessions*rounds)
	first := session(t, db)
	ask(t, first, "SELECT GET_LOCK('turn', 0)")
	done := make(chan error, sessions)
	for i := range sessions {
		c := session(t, db)
		go func() {
			done <- func() error {
				var released, got sql.NullInt64
				if err := c.QueryRowContext(t.Context(), "SELECT GET_LOCK('turn', 10)").Scan(&got); err != nil || got.Int64 != 1 {
					return fmt.Errorf("first turn: %v, %w", got, err)
				}
				for range rounds {
					turns <- i
					err := c.QueryRowContext(t.Context(), "SELECT RELEASE_LOCK(?), GET_LOCK(?, ?)", "turn", "turn", 10).Scan(&released, &got)
					if err != nil || released.Int64 != 1 || got.Int64 != 1 {
						return fmt.Errorf("turn: %v, %v, %w", released, got, err)
					}
				}
				return c.QueryRowContext(t.Context(), "SELECT RELEASE_LOCK('turn')").Scan(&released)
			}()
		}()
		waiters(t, e, "turn", i+1)
	}
	ask(t, first, "SELECT RELEASE_LOCK('turn')")
	for range sessions {
		require.NoError(t, <-done)
	}
	close(turns)
	n, last := 0, -1
	for i := range turns {
		if n < rounds { // later a session may be alone
			// A session that is stalled between the two halves of its statement loses its place in the queue. Two others wait
			// then, so no session gets the lock twice in a row.
			require.NotEqual(t, last, i, "turn %d", n)
		}
		last = i
		n++
	}
	require.Equal(t, sessions*rounds, n)
}

func TestLockEndsWithItsSession(t *testing.T) {
	e := start(t)
	db := open(t, e)
	// Each case has a lock of its own, because a closed session releases its lock only when it ends.
	for name, end := range map[string]func(*sql.Conn){
		"closed": discard,
		"killed": func(c *sql.Conn) {
			var id int64
			_ = c.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id)
			_, _ = db.ExecContext(t.Context(), fmt.Sprintf("KILL %d", id))
		},
	} {
		t.Run(name, func(t *testing.T) {
			holder, waiter := session(t, db), session(t, db)
			got, _ := ask(t, holder, "SELECT GET_LOCK(?, 0)", name)
			require.Equal(t, value(1), got)
			granted := make(chan error, 1)
			go func() {
				var got sql.NullInt64
				err := waiter.QueryRowContext(t.Context(), "SELECT GET_LOCK(?, 60)", name).Scan(&got)
				if err == nil && got.Int64 != 1 {
					err = fmt.Errorf("GET_LOCK: %v", got)
				}
				granted <- err
			}()
			waiters(t, e, name, 1)
			begun := time.Now()
			end(holder)
			require.NoError(t, <-granted)
			require.Less(t, time.Since(begun), 20*time.Second)
			discard(waiter)
		})
	}
}

func TestKilledWait(t *testing.T) {
	e := start(t)
	db := open(t, e)
	holder, other := session(t, db), session(t, db)
	ask(t, holder, "SELECT GET_LOCK('a', 0)")
	id, _ := ask(t, other, "SELECT CONNECTION_ID()")
	ended := make(chan error, 1)
	go func() {
		_, err := other.ExecContext(t.Context(), "SELECT GET_LOCK('a', 60)")
		ended <- err
	}()
	waiters(t, e, "a", 1)
	_, err := holder.ExecContext(t.Context(), fmt.Sprintf("KILL QUERY %d", id.Int64))
	require.NoError(t, err)
	require.NotZero(t, number(<-ended)) // 1317, or 1105 if the engine ends the query before the lock's wait ends
	waiters(t, e, "a", 0)
	got, _ := ask(t, other, "SELECT 7")
	require.Equal(t, value(7), got)
}

// A client that disconnects while it waits still gets the lock in its turn, and loses it at once.
func TestLockOfADisconnectedWaiter(t *testing.T) {
	e := start(t)
	db := open(t, e)
	holder, gone, next := session(t, db), session(t, db), session(t, db)
	ask(t, holder, "SELECT GET_LOCK('a', 0)")
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error, 1)
	go func() {
		_, err := gone.ExecContext(ctx, "SELECT GET_LOCK('a', 60)")
		left <- err
	}()
	waiters(t, e, "a", 1)
	cancel()
	require.ErrorIs(t, <-left, context.Canceled)
	ask(t, holder, "SELECT RELEASE_LOCK('a')")
	got, took := ask(t, next, "SELECT GET_LOCK('a', 60)")
	require.Equal(t, value(1), got)
	require.Less(t, took, 20*time.Second)
}
