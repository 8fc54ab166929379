package consumer

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// waiters returns the sessions that wait for a lock in the database, except those of gates.
func waiters(tb testing.TB, db *notify.DB) []uint64 {
	tb.Helper()
	return mysqltest.Sessions(tb, db.Pool(), db.Name(),
		"STATE = 'User lock' AND INFO LIKE 'SELECT%GET_LOCK(%' AND INFO NOT LIKE '%mqnotify:gate:%'")
}

// standingBy waits until n sessions wait for a lock in the database.
func standingBy(tb testing.TB, db *notify.DB, n int) {
	tb.Helper()
	eventually(tb, func() bool { return len(waiters(tb, db)) == n }, "%d members should stand by", n)
}

// One member of a group is active. Another takes over as soon as it leaves, and
// continues where it was.
func TestGroupHandsOver(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		options := Options{Group: "g", From: "beginning"}
		var first, second collected
		a := run(t, db, "orders", options, first.handler())
		insert(t, db, "orders", "one")
		first.waitFor(t, "one")
		b := run(t, db, "orders", options, second.handler())
		standingBy(t, db, 1)
		insert(t, db, "orders", "two")
		first.waitFor(t, "one", "two")
		require.NoError(t, a.end(t))
		insert(t, db, "orders", "three")
		second.waitFor(t, "three")
		require.NoError(t, b.end(t))
		require.Equal(t, uint64(3), stored(t, db, "g"))
	})
}

// Groups, and topics, are independent of one another.
func TestGroupsAreApart(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openConfig(t, s.Database(t), "orders", "bills")
		insert(t, db, "orders", "o")
		insert(t, db, "bills", "b")
		var got [3]collected
		for i, c := range []struct{ topic, group string }{{"orders", "g"}, {"orders", "G"}, {"bills", "g"}} {
			run(t, db, c.topic, Options{Group: c.group, From: "beginning"}, got[i].handler())
		}
		got[0].waitFor(t, "o")
		got[1].waitFor(t, "o")
		got[2].waitFor(t, "b")
	})
}

// If a member's process is killed (kill -9), the member that
// stands by gets the group at once.
func TestGroupProcessKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		do(t, db, "CREATE TABLE seen_once (id BIGINT UNSIGNED NOT NULL)")
		insert(t, db, "orders", "one")
		told, err := json.Marshal(tortureReader{DSN: config.FormatDSN(), Group: "g", Writers: writersUnknown})
		require.NoError(t, err)
		process := exec.Command(os.Args[0])
		process.Env = append(os.Environ(), tortureEnv+"="+string(told))
		require.NoError(t, process.Start())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = process.Wait()
		}()
		defer func() {
			_ = process.Process.Kill()
			<-ended
		}()
		eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM seen_once") == 1 }, "the process does not handle its row")
		// Wait until the offset is stored, or the next member would handle the message again, which is allowed but not tested here.
		eventually(t, func() bool { return stored(t, db, "g") == 1 }, "the process does not store its offset")

		var got collected
		c := run(t, db, "orders", Options{Group: "g"}, got.handler())
		standingBy(t, db, 1)
		require.NoError(t, process.Process.Kill())
		<-ended
		insert(t, db, "orders", "two")
		got.waitFor(t, "two") // which it does for less than the lock's session may be idle
		require.NoError(t, c.end(t))
	})
}

// If a member loses its lock while its handler works, the handler's context ends
// with the reason, another member handles the row, and the first member's transaction
// is not committed, even if its handler ignores the end of its context.
func TestGroupLockLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL, member CHAR(1) NOT NULL)")
		insert(t, db, "orders", "one")
		work := func(ctx context.Context, tx *sqlx.Tx, m Message, member string) error {
			_, err := tx.ExecContext(ctx, "INSERT INTO work (id, member) VALUES (?, ?)", m.ID, member)
			return err
		}
		options := Options{Group: "g", From: "beginning"}
		entered, release := make(chan context.Context), make(chan struct{})
		block := sync.OnceFunc(func() { <-release })
		a := run(t, db, "orders", options, EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
			err := work(ctx, tx, m, "a")
			select {
			case entered <- ctx:
				block()
				return nil // whatever became of it
			case <-release:
				return err
			}
		}))
		handling := <-entered
		b := run(t, db, "orders", options, EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
			return work(ctx, tx, m, "b")
		}))
		standingBy(t, db, 1)
		mysqltest.KillSession(t, db.Pool(), lockHolder(t, db, "g"))
		<-handling.Done()
		require.ErrorIs(t, context.Cause(handling), notify.ErrLockLost)
		eventually(t, func() bool { return stored(t, db, "g") == 1 }, "the second member does not take over")
		close(release)
		standingBy(t, db, 1) // the first one again
		insert(t, db, "orders", "two")
		eventually(t, func() bool { return stored(t, db, "g") == 2 }, "the second member does not go on")
		require.NoError(t, b.end(t))
		insert(t, db, "orders", "three")
		eventually(t, func() bool { return stored(t, db, "g") == 3 }, "the first member does not take its turn")
		require.NoError(t, a.end(t))
		require.Equal(t, []string{"1b", "2b", "3a"}, mysqltest.Values[string](t, db.Pool(), "SELECT CONCAT(id, member) FROM work ORDER BY id"))
	})
}

// The lock may be lost after Run's context has ended, while the handler runs.
func TestGroupLockLostWhileStopping(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		entered := make(chan context.Context)
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", StopTimeout: time.Hour},
			Each(func(ctx context.Context, _ Message) error {
				entered <- ctx
				<-ctx.Done()
				return context.Cause(ctx)
			}))
		handling := <-entered
		c.stop()
		mysqltest.KillSession(t, db.Pool(), lockHolder(t, db, "g"))
		select {
		case <-handling.Done():
			require.ErrorIs(t, context.Cause(handling), notify.ErrLockLost)
		case <-time.After(patience):
			t.Fatal("the handler is not told")
		}
		require.NoError(t, c.wait(t))
		require.Zero(t, stored(t, db, "g"))
	})
}

// A member whose wait for the lock is killed stands by again, however long it has stood by.
func TestStandbyKilled(t *testing.T) {
	mysqltest.NotShort(t, "TestGroupHandsOver")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		options := Options{Group: "g", From: "beginning"}
		var first, second collected
		a := run(t, db, "orders", options, first.handler())
		insert(t, db, "orders", "one")
		first.waitFor(t, "one")
		var clock mysqltest.Clock
		options.Reconnect = func() backoff.BackOff { // gives up a minute after the failure
			return backoff.NewExponentialBackOff(backoff.WithInitialInterval(10*time.Millisecond), backoff.WithMaxElapsedTime(time.Minute), backoff.WithClockProvider(&clock))
		}
		b := run(t, db, "orders", options, second.handler())
		var session uint64
		another := func() bool {
			now := waiters(t, db)
			if len(now) != 1 || now[0] == session {
				return false
			}
			session = now[0]
			return true
		}
		eventually(t, another, "it does not stand by")
		for how, kill := range map[string]func(testing.TB, mysqltest.Database, uint64) bool{"KILL QUERY": mysqltest.KillQuery, "KILL": mysqltest.KillSession} {
			clock.Forward(time.Hour)
			kill(t, s.Admin(t), session) // false: it has just asked again over another session
			eventually(t, another, "it does not stand by again after %s", how)
		}
		require.NoError(t, a.end(t))
		insert(t, db, "orders", "two")
		second.waitFor(t, "two")
		require.NoError(t, b.end(t))
	})
}

// If the network freezes with all connections open, the server gives the lock to
// the next member in bounded time, and the first member's handler learns it before.
func TestGroupNetworkFreezes(t *testing.T) {
	mysqltest.NotShort(t, "core.TestLostBeforeTheServerGivesTheLockAway and TestGroupLockLost")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		proxy := s.Proxy(t)
		far, err := notify.OpenConfig(proxy.Config(config))
		require.NoError(t, err)
		defer func() { require.NoError(t, far.Close()) }()
		insert(t, db, "orders", "one")
		options := Options{Group: "g", From: "beginning", lockIdle: 3 * time.Second}
		handling := make(chan context.Context, 1)
		a := run(t, far, "orders", options, Each(func(ctx context.Context, _ Message) error {
			handling <- ctx
			<-ctx.Done()
			return context.Cause(ctx)
		}))
		first := <-handling
		b := run(t, db, "orders", options, Each(func(context.Context, Message) error {
			if first.Err() == nil {
				return errors.New("the first member's handler is not told yet")
			}
			return nil
		}))
		standingBy(t, db, 1)
		proxy.Freeze()
		eventually(t, func() bool { return stored(t, db, "g") == 1 }, "the second member does not take over")
		require.ErrorIs(t, context.Cause(first), notify.ErrLockLost)
		proxy.Thaw()
		require.NoError(t, b.end(t))
		require.NoError(t, a.end(t))
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
	})
}

// The invariant: however connections are cut, the handlers of a group never work on
// the same row at the same time, and every row is handled.
func TestHandlersNeverShareARow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		var mu sync.Mutex
		working, handled := make(map[uint64]bool), make(map[uint64]int)
		handler := Each(func(ctx context.Context, m Message) error {
			mu.Lock()
			twice := working[m.ID]
			working[m.ID] = true
			mu.Unlock()
			if twice {
				t.Errorf("message %d is handled twice at once", m.ID)
			}
			var err error
			select { // work, of a kind that obeys its context
			case <-time.After(2 * time.Millisecond):
			case <-ctx.Done():
				err = context.Cause(ctx)
			}
			mu.Lock()
			defer mu.Unlock()
			delete(working, m.ID)
			if err == nil {
				handled[m.ID]++
			}
			return err
		})
		var proxies []*mysqltest.Proxy
		for range 2 {
			proxy := s.Proxy(t)
			far, err := notify.OpenConfig(proxy.Config(config))
			require.NoError(t, err)
			defer func() { require.NoError(t, far.Close()) }()
			run(t, far, "orders", Options{Group: "g", From: "beginning", Logger: quiet}, handler)
			proxies = append(proxies, proxy)
		}
		standingBy(t, db, 1) // a first connection that fails would end a member
		rows := 0
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return len(handled)
		}
		for round := range mysqltest.Many(2, 8, 16) {
			for range 20 {
				insert(t, db, "orders", "x")
			}
			half := rows + 10
			rows += 20
			eventually(t, func() bool { return count() >= half }, "round %d", round)
			proxies[round%2].Down() // a member in the middle of its work, or the one that stands by
			eventually(t, func() bool { return count() == rows }, "round %d", round)
			proxies[round%2].Up()
		}
	})
}
