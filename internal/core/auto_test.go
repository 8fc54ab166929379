package core_test

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// auto is an Auto with its log.
type auto struct {
	*core.Auto
	logged mysqltest.Text
}

func openAuto(tb testing.TB, db *core.DB) *auto {
	tb.Helper()
	a := new(auto)
	a.Auto = core.NewAuto(db, core.LargestID("orders", "id"), core.AutoOptions{Logger: slog.New(slog.NewTextHandler(&a.logged, nil))})
	tb.Cleanup(func() { require.NoError(tb, a.Close()) })
	return a
}

// awaitMode waits until the mode is the wanted one, and returns why it is not trigger.
func (a *auto) awaitMode(tb testing.TB, want string) (why string) {
	tb.Helper()
	mysqltest.Eventually(tb, "the mode is "+want, func() bool {
		_, err := a.Head(tb.Context())
		require.NoError(tb, err)
		var mode string
		mode, why = a.Mode()
		return mode == want
	})
	return why
}

// wakes inserts a row by a plain INSERT, and returns how long after its commit the Wait ended.
func (a *auto) wakes(tb testing.TB, db *core.DB) time.Duration {
	tb.Helper()
	seen, err := a.Head(tb.Context())
	require.NoError(tb, err)
	insert(tb, db)
	begun := time.Now()
	head, err := a.Wait(tb.Context(), seen, patience)
	require.NoError(tb, err)
	require.NotEqual(tb, seen, head, "the bound of the wait has passed")
	return time.Since(begun)
}

// A wake trigger that is created while a process waits is used, and no longer used when it is removed. Each mode is logged once.
func TestAutoTakesATrigger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		a := openAuto(t, db)
		assert.Contains(t, a.awaitMode(t, "poll"), "mqnotify wake install")
		a.wakes(t, db)
		options := wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}
		require.NoError(t, wake.Install(t.Context(), db, options, "orders"))
		assert.Empty(t, a.awaitMode(t, "trigger"))
		a.wakes(t, db)
		_, err := wake.Remove(t.Context(), db, options, "orders")
		require.NoError(t, err)
		assert.Contains(t, a.awaitMode(t, "poll"), "no wake trigger")
		a.wakes(t, db)
		assert.Equal(t, 3, strings.Count(a.logged.String(), "\n"), a.logged.String())
	})
}

// If a server is read-only, its writers are elsewhere: Auto polls, or follows its commits.
func TestAutoOnAReadOnlyServer(t *testing.T) {
	mysqltest.NotShort(t, "TestAutoTakesATrigger")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own, mode := s.Start(t, "--read-only=1"), "poll"
		if !s.IsMariaDB() {
			own, mode = s.Start(t, append(gtidFlags, "--read-only=1")...), "gtid"
		}
		db := openTopic(t, own) // root may write
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}, "orders"))
		a := openAuto(t, db)
		assert.Contains(t, a.awaitMode(t, mode), "do not reach")
		a.wakes(t, db)
		mysqltest.Exec(t, db.Pool(), "SET GLOBAL read_only = 0")
		a.awaitMode(t, "trigger")
		a.wakes(t, db)
	})
}

var gtidFlags = []string{"--log-bin=binlog", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"}

// A proxy that sends every statement to another session of the server makes locks impossible: Auto polls.
func TestAutoThroughAMultiplexer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}, "orders"))
		// More sessions than statements that may wait at once: otherwise the waits alone would keep all sessions.
		a := openAuto(t, openDB(t, own.Multiplexer(t, 16).Config(config)))
		// The first reason may be a lock that the process lost because of the proxy.
		mysqltest.Eventually(t, "the reason is the proxy", func() bool { return strings.Contains(a.awaitMode(t, "poll"), "proxy") })
		a.wakes(t, db)
		require.NoError(t, a.Close())
	})
}

// Without a wake trigger, MySQL's commits end the wait long before a poll would, as long as GTIDs are on.
func TestAutoFollowsCommits(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MariaDB has no wait for a commit")
		}
		own := s.Start(t, gtidFlags...)
		db := openTopic(t, own)
		a := openAuto(t, db)
		five := func() (took []time.Duration) {
			for range 5 {
				<-time.After(1500 * time.Millisecond) // polls are a second apart by then
				took = append(took, a.wakes(t, db))
			}
			slices.Sort(took)
			return took
		}
		assert.Contains(t, a.awaitMode(t, "gtid"), "no wake trigger")
		followed := five()
		_, err := own.Admin(t).ExecContext(t.Context(), "SET GLOBAL gtid_mode = ON_PERMISSIVE")
		require.NoError(t, err)
		insert(t, db) // ends the wait for a commit
		a.awaitMode(t, "poll")
		polled := five()
		t.Log(followed, polled)
		assert.Less(t, followed[1], polled[2]/3, "the second best and the median")
	})
}

// Closing an Auto at any moment leaves nothing behind.
func TestAutoClose(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Tidy(t, ours)
		makeTopic(t, openDB(t, config))
		for _, bound := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
			a := core.NewAuto(openDB(t, config), core.LargestID("orders", "id"), core.AutoOptions{})
			waited := mysqltest.Result(func() error {
				head, err := a.Head(t.Context())
				for err == nil {
					head, err = a.Wait(t.Context(), head, time.Hour)
				}
				return err
			})
			<-time.After(bound)
			var all sync.WaitGroup
			for range 3 {
				all.Go(func() { assert.NoError(t, a.Close()) })
			}
			all.Wait()
			require.Error(t, mysqltest.Receive(t, waited))
			_, err := a.Head(t.Context())
			require.Error(t, err)
		}
	})
}
