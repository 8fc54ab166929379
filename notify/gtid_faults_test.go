package notify_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A waiter leaves when gtid_mode is changed: at the next commit, or at the latest after
// its longest wait, and does not keep the mode from being set to OFF for longer.
func TestGTIDModeChanges(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		admin := own.Admin(t)
		set := func(mode string) error {
			_, err := admin.ExecContext(t.Context(), "SET GLOBAL gtid_mode = "+mode)
			return err
		}
		session, waiter := openGTID(t, db)
		waited := beginWait(t.Context(), waiter, notify.Head{})
		mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
		require.NoError(t, set("ON_PERMISSIVE"))
		insert(t, db) // it has a GTID still
		got := mysqltest.Receive(t, waited)
		require.ErrorIs(t, got.err, notify.ErrNoGTID)
		require.Less(t, got.took, soon)

		// Commits without a GTID wake nobody.
		require.NoError(t, set("ON"))
		session, waiter = openGTID(t, db)
		head, err := waiter.Head(t.Context())
		require.NoError(t, err)
		early := notify.NewGTID(db, openSession(t, db, 0), notify.FlagCounter("unset"))
		_, err = early.Head(t.Context())
		require.NoError(t, err)
		const bound = 10 * time.Second
		begun := time.Now()
		bounded := mysqltest.Result(func() error {
			_, err := waiter.Wait(t.Context(), head, bound)
			return err
		})
		mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
		require.NoError(t, set("ON_PERMISSIVE"))
		require.NoError(t, set("OFF_PERMISSIVE"))
		err = set("OFF")
		require.True(t, server.Is(err, server.ErrCantSetGTIDMode), "while somebody waits: %v", err)
		insert(t, db)
		require.ErrorIs(t, mysqltest.Receive(t, bounded), notify.ErrNoGTID)
		require.GreaterOrEqual(t, time.Since(begun), bound)
		require.NoError(t, set("OFF"))
		_, err = early.Head(t.Context())
		require.ErrorIs(t, err, notify.ErrNoGTID)

		// A session from before the change believes that it may wait.
		_, err = early.Wait(t.Context(), notify.Head{}, time.Hour)
		require.ErrorIs(t, err, notify.ErrNoGTID)
		assert.True(t, server.Is(err, server.ErrGTIDModeOff))
		_, waiter = openGTID(t, db)
		_, err = waiter.Head(t.Context())
		require.ErrorIs(t, err, notify.ErrNoGTID)
	})
}

func gtidKilled(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	admin := own.Admin(t)
	for _, what := range []string{"CONNECTION", "QUERY"} {
		session, waiter := openGTID(t, db)
		waited := beginWait(t.Context(), waiter, notify.Head{})
		mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
		kill(t, admin, what, session.ID())
		got := mysqltest.Receive(t, waited)
		require.Error(t, got.err)
		require.True(t, server.ConnectionLost(got.err), got.err)
		require.NoError(t, waiter.Close())
	}
}

func TestGTIDServerEnds(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		db := openTopic(t, own)
		for _, end := range []func(){own.Stop, own.Kill} {
			session, waiter := openGTID(t, db)
			seen, err := waiter.Head(t.Context())
			require.NoError(t, err)
			waited := beginWait(t.Context(), waiter, seen)
			mysqltest.AwaitState(t, own.Admin(t), session.ID(), gtidWaiting)
			end()
			got := mysqltest.Receive(t, waited)
			require.True(t, server.ConnectionLost(got.err), got.err)
			require.NoError(t, waiter.Close())

			own.Restart(t)
			session, waiter = openGTID(t, db)
			seen, err = waiter.Head(t.Context())
			require.NoError(t, err)
			waited = beginWait(t.Context(), waiter, seen)
			mysqltest.AwaitState(t, own.Admin(t), session.ID(), gtidWaiting)
			insert(t, db)
			seen = requireWoken(t, waited, seen)
			require.NoError(t, waiter.Close())

			// What another one has seen is not taken for its own.
			_, waiter = openGTID(t, db)
			_, err = waiter.Head(t.Context())
			require.NoError(t, err)
			requireWoken(t, beginWait(t.Context(), waiter, seen), seen)
		}
	})
}

// A network that fails silently: nothing gets through, the KILL neither.
func gtidBehindAFrozenNetwork(t *testing.T, own *mysqltest.Server) {
	proxy := own.Proxy(t)
	db := openDB(t, proxy.Config(own.Database(t)))
	makeTopic(t, db)
	session, waiter := openGTID(t, db)
	waited := beginWait(t.Context(), waiter, notify.Head{})
	mysqltest.AwaitState(t, own.Admin(t), session.ID(), gtidWaiting)
	proxy.Freeze()
	begun := time.Now()
	require.NoError(t, waiter.Close())
	require.Error(t, mysqltest.Receive(t, waited).err)
	require.Less(t, time.Since(begun), soon)
	proxy.Thaw()
	// What was sent meanwhile arrives now, or it did not get as far as the proxy.
	_, err := own.Admin(t).ExecContext(t.Context(), fmt.Sprintf("KILL %d", session.ID()))
	if !server.Is(err, server.ErrNoSuchThread) {
		require.NoError(t, err)
	}
}

// A KILL is meant for the session's server. On another one, where a balancer may send
// the pool, the number is a stranger's.
func TestGTIDKillsNoStranger(t *testing.T) {
	eachGTID(t, func(t *testing.T, own *mysqltest.Server) {
		stranger := own.Start(t, gtidFlags...)
		var folder string
		require.NoError(t, stranger.Admin(t).QueryRowContext(t.Context(), "SELECT @@datadir").Scan(&folder))
		stranger.Stop()
		require.NoError(t, os.Remove(filepath.Join(folder, "auto.cnf"))) // a UUID of its own
		stranger.Restart(t)

		config := own.Database(t)
		_, err := stranger.Admin(t).ExecContext(t.Context(), "CREATE DATABASE "+config.DBName)
		require.NoError(t, err)
		makeTopic(t, openDB(t, config))
		var turned atomic.Bool
		config.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			var d net.Dialer
			if turned.Load() {
				return d.DialContext(ctx, network, stranger.Addr())
			}
			return d.DialContext(ctx, network, own.Addr())
		}
		db := openDB(t, config)
		db.Pool().SetMaxIdleConns(0)
		for range 20 { // numbers that the other server has not given out
			require.NoError(t, db.Pool().Ping())
		}
		session, waiter := openGTID(t, db)
		waited := beginWait(t.Context(), waiter, notify.Head{})
		mysqltest.AwaitState(t, own.Admin(t), session.ID(), gtidWaiting)

		turned.Store(true)
		var same *sqlx.Conn
		for id := uint64(0); id != session.ID(); {
			require.Less(t, id, session.ID())
			if same != nil {
				require.NoError(t, same.Close())
			}
			same, err = db.Pool().Connx(t.Context())
			require.NoError(t, err)
			require.NoError(t, same.GetContext(t.Context(), &id, "SELECT CONNECTION_ID()"))
		}
		slept := mysqltest.Result(func() (interrupted int) {
			assert.NoError(t, same.GetContext(t.Context(), &interrupted, "SELECT SLEEP(5)"))
			return interrupted
		})
		mysqltest.AwaitState(t, stranger.Admin(t), session.ID(), "User sleep")
		require.NoError(t, waiter.Close())
		require.Error(t, mysqltest.Receive(t, waited).err)
		require.Zero(t, mysqltest.Receive(t, slept))
		require.NoError(t, same.Close())
		kill(t, own.Admin(t), "CONNECTION", session.ID())
	})
}

// commitAs commits a row as if it came from elsewhere: with a GTID that is not the
// server's own, or a tag.
func commitAs(tb testing.TB, db *notify.DB, gtid string) {
	tb.Helper()
	conn, err := db.Pool().Connx(tb.Context())
	require.NoError(tb, err)
	for _, statement := range []string{
		"SET SESSION gtid_next = '" + gtid + "'",
		"INSERT INTO orders (payload) VALUES ('x')",
		"SET SESSION gtid_next = 'AUTOMATIC'",
	} {
		_, err := conn.ExecContext(tb.Context(), statement)
		require.NoError(tb, err, statement)
	}
	require.NoError(tb, conn.Close())
}

// Where another origin's numbers grow, the first commit shows what to wait for.
func gtidOfOtherOrigins(t *testing.T, own *mysqltest.Server) {
	const elsewhere = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
	db := openTopic(t, own)
	admin := own.Admin(t)
	wakes := func(t *testing.T, waiter *notify.GTID, session *notify.Session, seen notify.Head, gtid string) notify.Head {
		t.Helper()
		waited := beginWait(t.Context(), waiter, seen)
		mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
		commitAs(t, db, gtid)
		return requireWoken(t, waited, seen)
	}
	t.Run("a replica", func(t *testing.T) {
		_, err := admin.ExecContext(t.Context(), "SET GLOBAL read_only = ON") // root writes still
		require.NoError(t, err)
		session, waiter := openGTID(t, db)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		for _, n := range []string{"7", "8", "9", "10"} {
			seen = wakes(t, waiter, session, seen, elsewhere+":"+n)
		}
		_, err = admin.ExecContext(t.Context(), "SET GLOBAL read_only = OFF")
		require.NoError(t, err)
		require.NoError(t, waiter.Close())
	})
	t.Run("tags", func(t *testing.T) {
		session, waiter := openGTID(t, db)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		bounded := mysqltest.Result(func() turn {
			head, err := waiter.Wait(t.Context(), seen, 5*time.Second)
			return turn{head: head, err: err}
		})
		mysqltest.AwaitState(t, admin, session.ID(), gtidWaiting)
		commitAs(t, db, "AUTOMATIC:jobs")
		got := mysqltest.Receive(t, bounded)
		require.NoError(t, got.err)
		require.NotEqual(t, seen, got.head, "it is seen after the bound")
		seen = got.head
		for _, gtid := range []string{"AUTOMATIC:jobs", "AUTOMATIC:jobs"} {
			seen = wakes(t, waiter, session, seen, gtid)
		}
	})
	t.Run("a gap", func(t *testing.T) {
		var uuid string
		require.NoError(t, admin.QueryRowContext(t.Context(), "SELECT @@server_uuid").Scan(&uuid))
		commitAs(t, db, uuid+":1000000")
		session, waiter := openGTID(t, db)
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		for range 3 {
			seen = wakes(t, waiter, session, seen, "AUTOMATIC")
		}
	})
}
