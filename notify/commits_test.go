package notify_test

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// told returns when the user has been told, which is well before its session would
// look by itself.
func told(tb testing.TB, user *notify.CommitUser) {
	tb.Helper()
	select {
	case _, ok := <-user.C:
		require.True(tb, ok, user.Err())
	case <-time.After(soon):
		tb.Fatal("not told of the commit")
	}
}

// failed returns when no more will come.
func failed(tb testing.TB, user *notify.CommitUser) error {
	tb.Helper()
	for {
		select {
		case _, ok := <-user.C:
			if !ok {
				return user.Err()
			}
		case <-time.After(soon):
			tb.Fatal("not told of the end")
		}
	}
}

func TestCommits(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		for name, test := range map[string]func(t *testing.T, own *mysqltest.Server){
			"many users": commitsOfManyUsers, "busy server": commitsOfABusyServer, "come and go": commitsComeAndGo,
			"lost session": commitsAfterALoss, "switched off": commitsSwitchedOff,
		} {
			t.Run(name, func(t *testing.T) { test(t, own) })
		}
	})
}

// However many want to know, there is one session, while there is anybody, and not a
// moment longer.
func commitsOfManyUsers(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	admin := own.Admin(t)
	for range 3 {
		var users []*notify.CommitUser
		for range 10 {
			users = append(users, db.Commits())
		}
		told(t, users[0]) // connected
		for _, user := range users[1:] {
			told(t, user)
		}
		for range 5 {
			require.Eventually(t, func() bool { return waitsOf(t, admin) == 1 }, patience, tick)
			for _, user := range users {
				require.Empty(t, user.C)
			}
			insert(t, db)
			for _, user := range users {
				told(t, user)
			}
		}
		for i, user := range users {
			require.Eventually(t, func() bool { return waitsOf(t, admin) == 1 }, patience, tick)
			user.Close()
			if i == 0 {
				insert(t, db)
				told(t, users[1])
				require.Empty(t, user.C)
			}
		}
		require.Zero(t, waitsOf(t, admin))
		users[0].Close()
		require.NoError(t, users[0].Err())
	}
}

// Of a busy server it tells each 100 ms at most, once when nobody listens, and sooner while that brings news.
func commitsOfABusyServer(t *testing.T, own *mysqltest.Server) {
	const floor = 100 * time.Millisecond
	db := openTopic(t, own)
	user := db.Commits()
	defer user.Close()
	told(t, user)
	commits := keepCommitting(t, db, 3)
	most := 0
	for range 3 { // the writers alone may have the processors once or twice
		begun, before, tells := time.Now(), commits.Load(), 0
		for commits.Load()-before < 300 || time.Since(begun) < 10*floor {
			told(t, user)
			tells++
		}
		// Thrice, since a look that takes as long as the floor lets the waits begin anew, at 1 ms.
		assert.LessOrEqual(t, float64(tells), 3*time.Since(begun).Seconds()/floor.Seconds()+8)
		most = max(most, tells)
	}
	assert.Greater(t, most, 5)
	require.Eventually(t, func() bool {
		const tells = 50
		begun := time.Now()
		for range tells {
			user.Brought()
			told(t, user)
		}
		return time.Since(begun) < tells*floor/3
	}, patience, tick)
}

func commitsComeAndGo(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	defer func() { require.Zero(t, waitsOf(t, own.Admin(t))) }()
	keepCommitting(t, db, 1)
	var all sync.WaitGroup
	defer all.Wait()
	for range 8 {
		all.Go(func() {
			for range 20 {
				user := db.Commits()
				if random().IntN(2) == 0 {
					select {
					case <-user.C:
					case <-time.After(soon):
						assert.Fail(t, "not told of the commit")
					}
				}
				user.Close()
			}
		})
	}
}

// A session that was lost is opened again, and what it may have missed is told.
func commitsAfterALoss(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	admin := own.Admin(t)
	user := db.Commits()
	defer user.Close()
	told(t, user)
	for range 5 {
		require.Eventually(t, func() bool { return waitsOf(t, admin) == 1 }, patience, tick)
		var id uint64
		require.NoError(t, admin.QueryRowContext(t.Context(),
			"SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = ?", gtidWaiting).Scan(&id))
		kill(t, admin, "CONNECTION", id)
		told(t, user)
		require.Eventually(t, func() bool { return waitsOf(t, admin) == 1 }, patience, tick)
		select { // the loss and the new session are told apart, or together
		case <-user.C:
		default:
		}
		insert(t, db)
		told(t, user)
	}
}

// When commits can't be waited for any more all users hear of it, and whoever comes
// then tries anew.
func commitsSwitchedOff(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	user, other := db.Commits(), db.Commits()
	told(t, user)
	mysqltest.Exec(t, db.Pool(), "SET GLOBAL gtid_mode = ON_PERMISSIVE")
	insert(t, db)
	require.ErrorIs(t, failed(t, user), notify.ErrNoGTID)
	require.ErrorIs(t, failed(t, other), notify.ErrNoGTID)
	again := db.Commits()
	require.ErrorIs(t, failed(t, again), notify.ErrNoGTID)
	mysqltest.Exec(t, db.Pool(), "SET GLOBAL gtid_mode = ON")
	last := db.Commits()
	told(t, last)
	for _, user := range []*notify.CommitUser{user, other, again, last, user} {
		user.Close()
	}
	require.Zero(t, waitsOf(t, own.Admin(t)))
}

func TestCommitsWithoutGTID(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for range 2 {
			user := db.Commits()
			require.ErrorIs(t, failed(t, user), notify.ErrNoGTID)
			user.Close()
		}
	})
}

// A server that is gone is asked for with waits that grow, and what it committed
// meanwhile is told.
func TestCommitsAfterARestart(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		config := own.Database(t)
		var dials atomic.Int64
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			var d net.Dialer
			return d.DialContext(ctx, network, addr)
		}
		db := openDB(t, config)
		makeTopic(t, db)
		user := db.Commits()
		defer user.Close()
		told(t, user)
		before := dials.Load()
		own.Kill()
		timer := time.NewTimer(1500 * time.Millisecond)
		<-timer.C
		assert.LessOrEqual(t, dials.Load()-before, int64(8), "50, 100, 200, 400, 800 ms, each a fifth shorter at most")
		require.Eventually(t, func() bool { return dials.Load()-before > 1 }, patience, tick)
		own.Restart(t)
		select { // the next try may be 5 s away, and the server slow
		case <-user.C:
		case <-time.After(patience):
			require.Fail(t, "not told of the commits meanwhile")
		}
		insert(t, db)
		told(t, user)

		own.Kill() // closing does not wait for it
		closed := mysqltest.Result(func() bool {
			user.Close()
			return true
		})
		mysqltest.Receive(t, closed)
	})
}
