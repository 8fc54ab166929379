package notify_test

import (
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// auto is an Auto in a process of its own, and what it logged.
type auto struct {
	*notify.Auto
	db     *notify.DB
	logged mysqltest.Text
}

func openAuto(tb testing.TB, db *notify.DB, again time.Duration) *auto {
	tb.Helper()
	a := &auto{db: db}
	a.Auto = notify.NewAuto(db, openSession(tb, db, never), "orders", notify.LargestID("orders", "id"), notify.AutoOptions{
		Again: again, Logger: slog.New(slog.NewTextHandler(&a.logged, nil)),
	})
	tb.Cleanup(func() { require.NoError(tb, a.Close()) })
	return a
}

// awaitMode waits for messages until the mode is the wanted one, and returns why it
// is none better.
func (a *auto) awaitMode(tb testing.TB, want string) string {
	tb.Helper()
	late := time.After(2 * patience) // a keeper that sleeps looks whether the server is read-only each 30 s
	for {
		head, err := a.Head(tb.Context())
		require.NoError(tb, err)
		_, err = a.Wait(tb.Context(), head, 10*time.Millisecond)
		require.NoError(tb, err)
		mode, why := a.Mode()
		if mode == want {
			return why
		}
		select {
		case <-late:
			tb.Fatalf("still %s, not %s: %s", mode, want, a.logged.String())
		default:
		}
	}
}

// wakes tells that a row of a writer that knows nothing ends a wait before its bound.
func (a *auto) wakes(tb testing.TB, db *notify.DB) {
	tb.Helper()
	seen, err := a.Head(tb.Context())
	require.NoError(tb, err)
	insert(tb, db)
	begun := time.Now()
	_, err = a.Wait(tb.Context(), seen, 10*patience)
	require.NoError(tb, err)
	assert.Less(tb, time.Since(begun), patience)
}

// startWithGTIDs starts a server, a MySQL with GTIDs.
func startWithGTIDs(tb testing.TB, s *mysqltest.Server) *mysqltest.Server {
	tb.Helper()
	if s.IsMariaDB() {
		return s.Start(tb)
	}
	return s.Start(tb, gtidFlags...)
}

// The best way that works is taken, and told in one line.
func TestAutoChooses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		a := openAuto(t, db, 0)
		assert.Empty(t, a.awaitMode(t, "gate"))
		a.wakes(t, db)
		assert.Equal(t, 1, strings.Count(a.logged.String(), "\n"), a.logged.String())
		assert.Contains(t, a.logged.String(), "mode=gate")
	})
}

// A row that its one reader deletes is looked at.
func TestAutoPollsTheFlagRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		a := notify.NewAuto(db, openSession(t, db, never), "orders", notify.FlagRow("orders"), notify.AutoOptions{})
		defer func() { require.NoError(t, a.Close()) }()
		setFlag(t, db)
		head, err := a.Head(t.Context())
		require.NoError(t, err)
		_, ok := head.Value()
		assert.True(t, ok)
		mode, why := a.Mode()
		assert.Equal(t, "poll", mode)
		assert.Contains(t, why, "deletes")
	})
}

// A server that becomes read-only has its writers elsewhere: it is polled, and the
// gate is back when the server takes writes again.
func TestAutoOnAReadOnlyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := startWithGTIDs(t, s)
		config := own.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		a, other := openAuto(t, db, 200*time.Millisecond), openAuto(t, openDB(t, config), 200*time.Millisecond)
		for _, a := range []*auto{a, other} {
			a.awaitMode(t, "gate")
		}
		for range mysqltest.Size(1, 1, 2) {
			_, err := own.Admin(t).ExecContext(t.Context(), "SET GLOBAL read_only = 1")
			require.NoError(t, err)
			for _, a := range []*auto{a, other} {
				assert.Contains(t, a.awaitMode(t, "poll"), "read-only")
				a.wakes(t, db) // root may write
			}
			late := openAuto(t, openDB(t, config), 0)
			assert.Contains(t, late.awaitMode(t, "poll"), "read-only")
			_, err = own.Admin(t).ExecContext(t.Context(), "SET GLOBAL read_only = 0")
			require.NoError(t, err)
			for _, a := range []*auto{a, other} {
				a.awaitMode(t, "gate")
				a.wakes(t, db)
			}
		}
		assert.Contains(t, a.logged.String(), "mode=poll why=")
	})
}

// Through a proxy that deals a connection's statements out to many sessions no lock
// can be held: what may be on any session is polled, and nothing is left behind.
func TestAutoThroughAMultiplexer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := startWithGTIDs(t, s)
		config := own.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		shared := openDB(t, own.Multiplexer(t, 4).Config(config))
		a := openAuto(t, shared, 50*time.Millisecond)
		assert.Contains(t, a.awaitMode(t, "poll"), "proxy")
		a.wakes(t, db)
		a.awaitMode(t, "poll")
		require.NoError(t, a.Close())
	})
}

// A way of which only a connection was lost is taken again soon.
func TestAutoAfterALostConnection(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		a := openAuto(t, openDB(t, config), time.Hour)
		a.awaitMode(t, "gate")
		require.Eventually(t, func() bool { // it asks for the head in the moment before the gate has reconnected
			if keeper := holder(t, s.Admin(t), gateLock(config, "keeper")); keeper != 0 {
				killIfThere(t, s.Admin(t), "CONNECTION", keeper)
			}
			_, err := a.Head(t.Context())
			require.NoError(t, err)
			mode, _ := a.Mode()
			return mode != "gate"
		}, patience, time.Millisecond)
		head, err := a.Head(t.Context())
		for begun := time.Now(); err == nil && time.Since(begun) < patience; { // in the middle of a wait
			if mode, _ := a.Mode(); mode == "gate" {
				break
			}
			head, err = a.Wait(t.Context(), head, patience)
		}
		require.NoError(t, err)
		mode, why := a.Mode()
		require.Equal(t, "gate", mode, why)
	})
}

// Closing it in the middle of whatever it does leaves nothing behind.
func TestAutoClose(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openDB(t, config)
		makeTopic(t, db)
		for _, bound := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond} {
			a := notify.NewAuto(openDB(t, config), openSession(t, db, never), "orders",
				notify.LargestID("orders", "id"), notify.AutoOptions{Poll: backoff.NewConstantBackOff(time.Millisecond)})
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

// Where the gate is no use commits are waited for, until GTIDs are switched off, and
// again when they are back.
func TestAutoWaitsForCommits(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MariaDB has no wait for a commit")
		}
		own := startWithGTIDs(t, s)
		db := openTopic(t, own)
		a := &auto{db: db}
		a.Auto = notify.NewAuto(db, openSession(t, db, never), "orders", notify.FlagRow("orders"), notify.AutoOptions{
			Again: 100 * time.Millisecond, Logger: slog.New(slog.NewTextHandler(&a.logged, nil)),
		})
		defer func() { require.NoError(t, a.Close()) }()
		set := func(mode string) {
			_, err := own.Admin(t).ExecContext(t.Context(), "SET GLOBAL gtid_mode = "+mode)
			require.NoError(t, err)
		}
		for range 2 {
			a.awaitMode(t, "gtid")
			set("ON_PERMISSIVE")
			setFlag(t, db) // or the wait would not notice before its end
			assert.Contains(t, a.awaitMode(t, "poll"), "gtid_mode")
			set("ON")
		}
		a.awaitMode(t, "gtid")
	})
}

// A wake trigger that is made while a consumer waits is taken, and left when it is removed.
func TestAutoTakesATrigger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		a := openAuto(t, db, 100*time.Millisecond)
		assert.Empty(t, a.awaitMode(t, "gate"))
		options := wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}
		require.NoError(t, wake.Install(t.Context(), db, options, "orders"))
		assert.Empty(t, a.awaitMode(t, "trigger"))
		a.wakes(t, db)
		_, err := wake.Remove(t.Context(), db, options, "orders")
		require.NoError(t, err)
		assert.Contains(t, a.awaitMode(t, "gate"), "no wake trigger")
		a.wakes(t, db)
	})
}
