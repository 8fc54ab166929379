package notify_test

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

// keeper is a process that keeps the gate of orders, or stands by.
type keeper struct {
	*notify.Gate
	logs  mysqltest.Text
	stop  context.CancelFunc
	ended <-chan error
}

func runKeeper(tb testing.TB, db *notify.DB) *keeper {
	tb.Helper()
	k := &keeper{}
	k.Gate = notify.NewGate(db, "orders", notify.GateOptions{Look: often, Logger: slog.New(slog.NewTextHandler(&k.logs, nil))})
	var ctx context.Context
	ctx, k.stop = context.WithCancel(context.WithoutCancel(tb.Context()))
	k.ended = mysqltest.Result(func() error { return k.Keep(ctx) })
	tb.Cleanup(func() { require.NoError(tb, k.Close()) })
	return k
}

func (k *keeper) says(tb testing.TB, what string) {
	tb.Helper()
	require.EventuallyWithT(tb, func(c *assert.CollectT) { assert.Contains(c, k.logs.String(), what) }, patience, tick)
}

// keeps is not what a keeper says that stands by.
const keeps = `msg="keeps the gate"`

// A keeper takes the gate over from a listener, a second one stands by until the first is
// gone, and listeners that can't keep it hear of rows that anybody inserts.
func TestKeep(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, admin := s.Database(t), s.Admin(t)
		db := openDB(t, config)
		makeTopic(t, db)
		held := func(lock string) (id uint64) {
			require.NoError(t, admin.QueryRow("SELECT COALESCE(IS_USED_LOCK(?), 0)", notify.LockName("gate", db.Name(), "orders")+":"+lock).Scan(&id))
			return id
		}
		able := openGate(t, openDB(t, config), "orders", notify.GateOptions{})
		_, err := able.Head(t.Context())
		require.NoError(t, err)
		listener := held("keeper")

		first := runKeeper(t, openDB(t, config))
		first.says(t, keeps)
		require.NotEqual(t, listener, held("keeper"))
		require.Equal(t, held("claim"), held("keeper"))
		require.NoError(t, able.Close())

		// Its account can only log in.
		poor := s.User(t, config, "SELECT ON "+config.DBName+"."+schema.VersionTable)
		waiter := openGate(t, openDB(t, poor), "orders", notify.GateOptions{})
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		wakes := func() {
			t.Helper()
			begun := time.Now()
			insert(t, db)
			now, err := waiter.Wait(t.Context(), seen, patience)
			require.NoError(t, err)
			require.NotEqual(t, seen, now)
			require.Less(t, time.Since(begun), patience)
			seen = now
		}
		wakes()

		second := runKeeper(t, openDB(t, config))
		second.says(t, "stands by: another keeps the gate")
		require.Eventually(t, func() bool { // it says so first, and the one that is killed might be back before
			return len(sessions(t, admin, config, "USER = ? AND STATE = ?", config.User, waiting)) == 1
		}, patience, tick)
		kill(t, admin, "CONNECTION", held("keeper"))
		second.says(t, keeps)
		require.NotContains(t, second.logs.String(), "lost", "it waited")
		first.says(t, "lost the gate; it goes on by itself")
		first.says(t, "stands by: another keeps the gate")
		seen, err = waiter.Head(t.Context())
		require.NoError(t, err)
		wakes()

		second.stop()
		require.NoError(t, mysqltest.Receive(t, second.ended))
		require.NoError(t, first.Close())
		require.NoError(t, mysqltest.Receive(t, first.ended))
		require.NoError(t, first.Keep(t.Context()), "it is closed")
	})
}

// What can't be mended at its start ends a keeper; later it is waited for.
func TestKeepFails(t *testing.T) {
	if testing.Short() {
		t.Skip("TestKeep has the command that keeps a gate, TestLostWithTheServer has servers that end")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		makeTopic(t, openDB(t, config))
		poor := own.User(t, config, "INSERT ON "+config.DBName+".orders")
		require.ErrorContains(t, mysqltest.Receive(t, runKeeper(t, openDB(t, poor)).ended), "may not read")

		k := runKeeper(t, openDB(t, config))
		k.says(t, keeps)
		own.Stop()
		k.says(t, "lost the gate; it goes on by itself")
		require.Error(t, mysqltest.Receive(t, runKeeper(t, openDB(t, config)).ended))
		own.Restart(t)
		admin := own.Admin(t)
		require.Eventually(t, func() bool {
			keepers := 0
			err := admin.QueryRow("SELECT IS_USED_LOCK(?) IS NOT NULL", notify.LockName("gate", config.DBName, "orders")+":keeper").Scan(&keepers)
			return err == nil && keepers == 1
		}, patience, tick)
		k.stop()
		require.NoError(t, mysqltest.Receive(t, k.ended))
		require.Eventually(t, func() bool { // else the next one stands by, which works
			return holder(t, admin, gateLock(config, "claim")) == 0
		}, patience, tick)

		_, err := admin.Exec("SET GLOBAL read_only = 1")
		require.NoError(t, err)
		require.ErrorIs(t, mysqltest.Receive(t, runKeeper(t, openDB(t, config)).ended), notify.ErrNoGate)
	})
}
