package notify_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	wait "github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// openNotifications creates the table of notifications, with or without its wake trigger.
func openNotifications(t *testing.T, s *mysqltest.Server, trigger bool) (db *notify.DB, config *mysql.Config) {
	t.Helper()
	config = s.Tidy(t, "/mqnotify/notify.")
	db = openProcess(t, config)
	makeTopic(t, db)
	if trigger {
		options := wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}
		require.NoError(t, wake.Install(t.Context(), db, options, schema.NotificationTable))
	}
	return db, config
}

func listen(t *testing.T, db *notify.DB, names ...string) <-chan notify.Notification {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	got, err := notify.Listen(ctx, db, names...)
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		for range got { // until it is closed
			continue
		}
	})
	return got
}

// Every process gets the notifications of its names once, with their payloads, with a wake trigger and without.
func TestListen(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, trigger := range []bool{true, false} {
			t.Run(fmt.Sprintf("trigger %v", trigger), func(t *testing.T) {
				t.Parallel()
				db, config := openNotifications(t, s, trigger)
				one, other := listen(t, db, "reload", "größe"), listen(t, openProcess(t, config), "reload", "none")
				require.NoError(t, notify.Notify(t.Context(), db, "reload", "v42"))
				require.NoError(t, notify.Notify(t.Context(), db, "nobody listens", "x"))
				require.NoError(t, notify.Notify(t.Context(), db, "größe", strings.Repeat("\x00\xff", 8000/2)))
				mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_notification (name) VALUES ('reload')")
				got := mysqltest.Receive(t, one)
				assert.Equal(t, "reload v42", got.Name+" "+string(got.Payload))
				assert.False(t, got.Missed)
				assert.WithinDuration(t, time.Now(), got.Time, patience)
				got = mysqltest.Receive(t, one)
				assert.Equal(t, strings.Repeat("\x00\xff", 8000/2), string(got.Payload))
				assert.Empty(t, mysqltest.Receive(t, one).Payload)
				assert.Equal(t, "v42", string(mysqltest.Receive(t, other).Payload))
				assert.Equal(t, "reload", mysqltest.Receive(t, other).Name)
			})
		}
	})
}

// A notification is received after the commit of its transaction, however late that is, and never after a rollback.
func TestListenLateCommits(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		before, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, notify.NotifyTx(t.Context(), before, "n", "begun before Listen"))
		require.NoError(t, notify.Notify(t.Context(), db, "n", "over before Listen"))
		got := listen(t, db, "n")
		late, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, notify.NotifyTx(t.Context(), late, "n", "late"))
		never, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		require.NoError(t, notify.NotifyTx(t.Context(), never, "n", "never"))
		require.NoError(t, notify.Notify(t.Context(), db, "n", "first"))
		assert.Equal(t, "first", string(mysqltest.Receive(t, got).Payload))
		require.NoError(t, never.Rollback())
		require.NoError(t, late.Commit())
		assert.Equal(t, "late", string(mysqltest.Receive(t, got).Payload))
		require.NoError(t, before.Commit())
		assert.Equal(t, "begun before Listen", string(mysqltest.Receive(t, got).Payload))
		require.NoError(t, notify.Notify(t.Context(), db, "n", "last"))
		assert.Equal(t, "last", string(mysqltest.Receive(t, got).Payload))
	})
}

// 5,000 names in one process use a few connections, and a NOTIFY wakes the one that listens.
func TestListenToManyNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		many := mysqltest.Size(500, 500, 5000)
		channels := make([]<-chan notify.Notification, many)
		for i := range channels {
			channels[i] = listen(t, db, fmt.Sprint("name ", i))
		}
		admin := s.Admin(t)
		mysqltest.Eventually(t, "they have few sessions", func() bool { // one that has ended is listed for a moment
			return mysqltest.Value[int](t, admin, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = ?", db.Name()) <= 8
		})
		for i := 0; i < many; i += many / 20 {
			require.NoError(t, notify.Notify(t.Context(), db, fmt.Sprint("name ", i), fmt.Sprint(i)))
			assert.Equal(t, fmt.Sprint(i), string(mysqltest.Receive(t, channels[i]).Payload))
		}
	})
}

// A receiver that is too slow learns that it missed some, and the other receivers get all.
func TestListenMisses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		slow, other := listen(t, db, "n"), listen(t, db, "last")
		const extra = 100
		for from := 0; from < notify.Unread+extra; from += 1000 {
			values := make([]string, 0, 1000)
			for i := from; i < min(from+1000, notify.Unread+extra); i++ {
				values = append(values, fmt.Sprintf("('n', '%d')", i))
			}
			mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_notification (name, payload) VALUES "+strings.Join(values, ", "))
		}
		require.NoError(t, notify.Notify(t.Context(), db, "last", ""))
		mysqltest.Receive(t, other)
		missed, last := 0, ""
		for last != fmt.Sprint(notify.Unread+extra-1) {
			got := mysqltest.Receive(t, slow)
			last = string(got.Payload)
			if got.Missed {
				missed++
			}
		}
		assert.Equal(t, 1, missed)
	})
}

// A receiver continues after its sessions were killed, and gets the notifications that were published in the meantime.
func TestListenAfterKills(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		got := listen(t, db, "n")
		for i := range 5 {
			for _, id := range mysqltest.Sessions(t, s.Admin(t), db.Name(), "") {
				mysqltest.KillSession(t, s.Admin(t), id)
			}
			var failed error
			mysqltest.Eventually(t, "the notification is stored", func() bool {
				err := notify.NotifyTx(t.Context(), db.Pool(), "n", fmt.Sprint(i))
				if err != nil && (failed == nil || err.Error() != failed.Error()) {
					t.Log(err)
				}
				if server.Is(err, server.ErrParse) { // MariaDB: the KILL met a statement while it opened the table, and broke its trigger
					mysqltest.Exec(t, s.Admin(t), "FLUSH TABLES `"+db.Name()+"`.mqnotify_notification")
				}
				failed = err
				return err == nil
			})
			assert.Equal(t, fmt.Sprint(i), string(mysqltest.Receive(t, got).Payload))
		}
	})
}

// A notification that is stored is no error, even if waking the receivers fails.
func TestNotifyWhenWakingFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, false)
		mysqltest.ExecAll(t, db.Pool(), "DROP PROCEDURE IF EXISTS mqnotify_wake",
			"CREATE PROCEDURE mqnotify_wake(name TEXT) SIGNAL SQLSTATE '45000'")
		require.Error(t, db.Wake(t.Context(), "mqnotify_notification"))
		require.NoError(t, notify.Notify(t.Context(), db, "n", "one"))
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_notification"))
	})
}

func TestListenRefusals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Tidy(t, "/mqnotify/notify."))
		for _, name := range []string{"", "\xff", strings.Repeat("n", 256)} {
			require.ErrorIs(t, notify.Notify(t.Context(), db, name, ""), notify.ErrOptions)
			_, err := notify.Listen(t.Context(), db, name)
			require.ErrorIs(t, err, notify.ErrOptions)
		}
		_, err := notify.Listen(t.Context(), db)
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorIs(t, notify.Notify(t.Context(), db, "n", strings.Repeat("x", 8000+1)), notify.ErrOptions)
		_, err = notify.Listen(t.Context(), db, "n")
		require.ErrorContains(t, err, "mqnotify init")
		require.ErrorContains(t, notify.Notify(t.Context(), db, "n", ""), "mqnotify init")
	})
}

// insertNotifications inserts rows for a name in one statement.
func insertNotifications(tb testing.TB, db mysqltest.Database, name string, rows int) {
	tb.Helper()
	mysqltest.Exec(tb, db, "INSERT INTO mqnotify_notification (name) VALUES ('"+name+"')"+strings.Repeat(", ('"+name+"')", rows-1))
}

// The last receiver leaves during a delivery, repeatedly.
func TestListenDuringTheLastStop(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		ctx, cancel := context.WithCancel(t.Context())
		ended := mysqltest.Result(func() int {
			for ctx.Err() == nil {
				insertNotifications(t, db.Pool(), "n", 300)
			}
			return 0
		})
		for range mysqltest.Many(10, 20, 200) {
			listening, stop := context.WithCancel(t.Context())
			got, err := notify.Listen(listening, db, "n")
			require.NoError(t, err)
			mysqltest.Receive(t, got)
			stop()
			closed := mysqltest.Result(func() int {
				for range got { // until it is closed
					continue
				}
				return 0
			})
			mysqltest.Receive(t, closed)
		}
		cancel()
		mysqltest.Receive(t, ended)
	})
}

// A pool of one connection is enough.
func TestListenOverAPoolOfOne(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		db.Pool().SetMaxOpenConns(1)
		got := listen(t, db, "last")
		for range 20 {
			insertNotifications(t, db.Pool(), "n", 900)
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		require.NoError(t, notify.Notify(ctx, db, "last", ""))
		mysqltest.Receive(t, got)
	})
}

// The ids begin again after a TRUNCATE, and the receiver gets the new rows.
func TestListenAfterTruncate(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		insertNotifications(t, db.Pool(), "n", 5)
		got := listen(t, db, "n")
		mysqltest.Exec(t, db.Pool(), "TRUNCATE TABLE mqnotify_notification")
		require.NoError(t, notify.Notify(t.Context(), db, "n", "after"))
		n := mysqltest.Receive(t, got)
		if n.ID == 0 { // the news that some may be missed can come by itself
			require.True(t, n.Missed)
			n = mysqltest.Receive(t, got)
		}
		assert.Equal(t, "after", string(n.Payload))
	})
}

// A newest row that is deleted by hand is no TRUNCATE: nothing is received again.
func TestListenAfterDeletedRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		got := listen(t, db, "n")
		for _, payload := range []string{"one", "two"} {
			require.NoError(t, notify.Notify(t.Context(), db, "n", payload))
			assert.Equal(t, payload, string(mysqltest.Receive(t, got).Payload))
		}
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_notification WHERE payload = 'two'")
		require.NoError(t, db.Wake(t.Context(), schema.NotificationTable))
		mysqltest.Window(t, 2*time.Second) // in which "one" was received again
		require.NoError(t, notify.Notify(t.Context(), db, "n", "three"))
		n := mysqltest.Receive(t, got)
		assert.Equal(t, "three", string(n.Payload))
		assert.False(t, n.Missed)
	})
}

// Servers of a cluster leave ids out. The receiver misses nothing, unless there are more ranges of missing ids than maxGaps.
func TestListenWithStepsOfIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, c := range map[string]struct {
			step, rows int
			misses     bool
		}{
			"few ranges":  {7, notify.MaxGaps / 4, false}, // more missing ids than maxGaps
			"many ranges": {2, notify.MaxGaps + 1000, true},
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				db, _ := openNotifications(t, s, true)
				require.NoError(t, notify.Notify(t.Context(), db, "other", ""))
				got := listen(t, db, "n")
				conn, err := db.Pool().Connx(t.Context())
				require.NoError(t, err)
				defer conn.Close()
				mysqltest.Exec(t, conn, "SET SESSION auto_increment_increment = ?", c.step)
				for range c.rows / 1000 {
					insertNotifications(t, conn, "other", 1000)
				}
				mysqltest.Exec(t, conn, "SET SESSION auto_increment_increment = 1")
				require.NoError(t, notify.Notify(t.Context(), db, "n", "single"))
				n := mysqltest.Receive(t, got)
				missed := n.Missed
				for n.ID == 0 { // the news that some are missed may come several times
					n = mysqltest.Receive(t, got)
				}
				assert.Equal(t, "single", string(n.Payload))
				assert.Equal(t, c.misses, missed || n.Missed)
			})
		}
	})
}

// A transaction with many notifications that commits late is received whole, because its ids are one range.
func TestListenToALateMany(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const many = 3000
		db, _ := openNotifications(t, s, true)
		got := listen(t, db, "n")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		for range many / 1000 {
			insertNotifications(t, tx, "n", 1000)
		}
		require.NoError(t, notify.Notify(t.Context(), db, "n", "single"))
		assert.Equal(t, "single", string(mysqltest.Receive(t, got).Payload))
		require.NoError(t, tx.Commit())
		seen := map[uint64]bool{}
		for range many {
			n := mysqltest.Receive(t, got)
			assert.False(t, n.Missed)
			seen[n.ID] = true
		}
		assert.Len(t, seen, many)
	})
}

// Pruning does not wait for an open transaction, and deletes old rows, but not the newest: its absence would look like a TRUNCATE.
func TestListenPrunes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		listen(t, db, "n")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_notification (name, created_at) VALUES ('old', NOW() - INTERVAL 2 HOUR), ('young', NOW()), ('newest', NOW() - INTERVAL 2 HOUR)")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { require.NoError(t, tx.Rollback()) }()
		require.NoError(t, notify.NotifyTx(t.Context(), tx, "n", "open"))
		pruned := mysqltest.Result(func() int { notify.Prune(t.Context(), db); return 0 })
		mysqltest.Receive(t, pruned) // innodb_lock_wait_timeout is longer than Receive's patience
		assert.Equal(t, []string{"young", "newest"}, mysqltest.Values[string](t, db.Pool(), "SELECT name FROM mqnotify_notification ORDER BY id"))
	})
}

// A session that holds the leader's lock without leading keeps no process from listening: the process polls.
func TestListenBesideAForeignLeader(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openNotifications(t, s, true)
		session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, session.Close()) }()
		_, err = session.TryLock(t.Context(), fmt.Sprintf("%s:%d:leader", wait.Prefix(config.DBName), wait.Gate(schema.NotificationTable)))
		require.NoError(t, err)
		got := listen(t, db, "n")
		require.NoError(t, notify.Notify(t.Context(), db, "n", "x"))
		assert.Equal(t, "x", string(mysqltest.Receive(t, got).Payload))
	})
}
