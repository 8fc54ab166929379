package waiting_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// The invariant: whichever session of whichever process is killed, every process sees every row.
func TestKilledSessions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		random := mysqltest.Random(t)
		watchers, stop := watch(t, config, 3, 0, random)
		own := mysqltest.Sessions(t, db, config.DBName, "")
		require.Greater(t, len(own), 6) // two in a gate, and one that reads
		leader := waiting.LeaderLock(config.DBName, "orders")
		for n := range mysqltest.Many(10, 25, 1000) {
			var victims []uint64
			if n%2 == 0 { // the leader
				victims = mysqltest.Values[uint64](t, db, "SELECT IS_USED_LOCK(?) FROM DUAL WHERE IS_USED_LOCK(?) IS NOT NULL", leader, leader)
			} else { // any session but the test's own
				victims = mysqltest.Sessions(t, db, config.DBName, "")
				random.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
				victims = victims[:min(2, len(victims))]
			}
			for _, id := range victims {
				mysqltest.KillSession(t, db, id)
			}
			pause(t.Context(), time.Duration(random.Int64N(int64(20*time.Millisecond))))
			_, err := db.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
			if server.Is(err, server.ErrParse) { // MariaDB: the KILL met a statement while it opened the table, and broke its trigger
				mysqltest.ExecAll(t, db, "FLUSH TABLES orders", "INSERT INTO orders (payload) VALUES ('x')")
				err = nil
			}
			require.NoError(t, err)
			last := mysqltest.Value[uint64](t, db, "SELECT MAX(id) FROM orders")
			for i, w := range watchers {
				mysqltest.Eventually(t, fmt.Sprintf("process %d sees row %d", i, last), func() bool { _, ok := w.at(last); return ok })
			}
			if n%5 == 0 {
				for _, w := range watchers {
					sleeps(t, w.listener)
				}
			}
		}
		stop()
	})
}

// The invariant: a commit wait of a listener never makes a writer's transaction fail, whatever the writer does.
func TestWritersMeetNoDeadlock(t *testing.T) {
	for table, create := range map[string]string{
		"plain": "CREATE TABLE {t} (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, payload LONGBLOB NOT NULL)",
		"partitioned": "CREATE TABLE {t} (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, payload LONGBLOB NOT NULL) " +
			"PARTITION BY HASH (id) PARTITIONS 4",
	} {
		t.Run(table, func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				config := s.Database(t)
				db := open(t, config)
				mysqltest.Exec(t, db, strings.ReplaceAll(create, "{t}", "orders"))
				makeTopic(t, db, config, "orders", true)
				random := mysqltest.Random(t)
				_, stop := watch(t, config, 2, 0, random)
				ctx, cancel := context.WithTimeout(t.Context(), mysqltest.Many(500*time.Millisecond, 2*time.Second, 5*time.Minute))
				defer cancel()
				var writers sync.WaitGroup
				var done [8]int
				for i := range done {
					writers.Go(func() {
						conn, err := db.Conn(t.Context())
						if !assert.NoError(t, err) {
							return
						}
						defer conn.Close()
						var before int64
						for ctx.Err() == nil {
							id, err := change(t.Context(), conn, before, random.IntN(100))
							if !assert.NoError(t, err) {
								return
							}
							before = id
							done[i]++
						}
					})
				}
				writers.Wait()
				stop()
				total := 0
				for _, n := range done {
					total += n
				}
				t.Logf("%d transactions", total)
			})
		})
	}
}

// change inserts a few rows, updates them, sometimes deletes one of an earlier transaction of the same writer, and
// commits, sometimes after a pause, or rolls back.
func change(ctx context.Context, conn *sql.Conn, before int64, chance int) (id int64, err error) {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer func() { _ = tx.Rollback() }()
	for range 1 + chance%3 {
		rows := "('x'), ('y')"
		if chance%3 > 0 { // the server waits between the rows, and other writers' rows come between them
			rows = "('x'), (CONCAT('y', SLEEP(0.003))), ('z')"
		}
		result, err := tx.ExecContext(ctx, "INSERT INTO orders (payload) VALUES "+rows)
		if err != nil {
			return 0, err
		}
		if id, err = result.LastInsertId(); err != nil {
			return 0, err
		}
		if chance%4 == 0 {
			pause(ctx, time.Duration(chance)*20*time.Microsecond)
		}
		if _, err := tx.ExecContext(ctx, "UPDATE orders SET payload = 'z' WHERE id = ?", id); err != nil {
			return 0, err
		}
	}
	if before > 0 && chance%2 == 0 {
		if _, err := tx.ExecContext(ctx, "DELETE FROM orders WHERE id = ?", before); err != nil {
			return 0, err
		}
	}
	if chance < 20 {
		return 0, tx.Rollback()
	}
	return id, tx.Commit()
}

// The invariant: a writer's KILL ends only the leader's wait, while sessions come and go.
func TestKillsEndOnlyTheLeadersWait(t *testing.T) {
	mysqltest.NotShort(t, "TestNothingIsLate")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		random := mysqltest.Random(t)
		watchers, stop := watch(t, config, 2, 0, random)
		ctx, cancel := context.WithTimeout(t.Context(), mysqltest.Many(500*time.Millisecond, 2*time.Second, 5*time.Minute))
		defer cancel()
		leader := waiting.LeaderLock(config.DBName, "orders")
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { // writers
				for ctx.Err() == nil {
					if _, err := db.ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('x')"); err != nil {
						assert.ErrorIs(t, err, ctx.Err())
					}
				}
			})
			all.Go(func() { // strangers, who come and go
				for ctx.Err() == nil {
					one := open(t, config)
					var slept int
					err := one.QueryRowContext(context.WithoutCancel(ctx), "SELECT SLEEP(0.005)").Scan(&slept)
					assert.NoError(t, err)
					assert.Zero(t, slept)
					assert.NoError(t, one.Close())
				}
			})
		}
		all.Go(func() { // leaders come and go, too
			for ctx.Err() == nil {
				var id sql.Null[uint64]
				if err := db.QueryRowContext(ctx, "SELECT IS_USED_LOCK(?)", leader).Scan(&id); err == nil && id.Valid {
					_, err := db.ExecContext(ctx, fmt.Sprintf("KILL %d", id.V))
					assert.True(t, err == nil || ctx.Err() != nil || server.Is(err, server.ErrNoSuchThread), "%v", err)
				}
				pause(ctx, 50*time.Millisecond)
			}
		})
		all.Wait()
		last := mysqltest.Value[uint64](t, db, "SELECT MAX(id) FROM orders")
		for i, w := range watchers {
			mysqltest.Eventually(t, fmt.Sprintf("process %d sees row %d", i, last), func() bool { _, ok := w.at(last); return ok })
		}
		stop()
	})
}

// A head that goes back, because rows were deleted or the table was truncated, is noticed, and costs no more statements
// than another hint.
func TestHeadGoesBack(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // its statements are counted
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		l := listen(t, config, "orders")
		ready(t, l)
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x'), ('y'), ('z')")
		becomes := func(id uint64) {
			t.Helper()
			mysqltest.Eventually(t, fmt.Sprintf("the head is %d", id), func() bool {
				head, err := l.Head(t.Context())
				return err == nil && head.V == id
			})
			sleeps(t, l)
		}
		becomes(3)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		mysqltest.Exec(t, tx, "DELETE FROM orders WHERE id = 3")
		before := s.Questions(t)
		mysqltest.Exec(t, db, "CALL mqnotify_wake('orders')")
		mysqltest.Window(t, time.Second)
		require.Less(t, s.Questions(t)-before, uint64(300), "statements while a DELETE is not committed")
		require.NoError(t, tx.Commit())
		becomes(2)
		mysqltest.Exec(t, db, "TRUNCATE TABLE orders")
		mysqltest.Exec(t, db, "CALL mqnotify_wake('orders')")
		becomes(0)
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
		becomes(1)
	})
}

// A listener learns at once that a trigger is removed, although other hints have just come without a row.
func TestTriggerRemovedAfterHints(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		l := listen(t, config, "orders")
		ready(t, l)
		for range 3 {
			sleeps(t, l)
			mysqltest.Exec(t, db, "CALL mqnotify_wake('orders')")
		}
		mysqltest.Exec(t, db, "DROP TRIGGER "+waiting.TriggerName("orders", "insert"))
		mysqltest.Exec(t, db, "CALL mqnotify_wake('orders')")
		mysqltest.Eventually(t, "the trigger is missed", func() bool {
			return errors.Is(l.Ready(t.Context()), waiting.ErrNoTrigger)
		})
	})
}

// A ping does not fail because of the limit of an earlier statement, which has passed since.
func TestPingAfterALongTime(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		require.NoError(t, waiting.PingAfterItsLimit(t.Context(), s.Database(t)))
	})
}

// Close returns soon although sessions wait in the server for more than a minute.
func TestCloseIsFast(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		waits := func(n int) {
			mysqltest.Eventually(t, "sessions wait in the server", func() bool {
				return mysqltest.Value[int](t, db, "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE = 'User lock'") == n
			})
		}
		mysqltest.Eventually(t, "a Close that waits for no session to be cut off", func() bool {
			first := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug)).Listen(topicOf("orders"))
			ready(t, first)
			waits(1) // so that it leads, and the second follows: only a KILL ends a follower's wait
			second := waiting.New(config, mysqltest.Logger(t, slog.LevelDebug)).Listen(topicOf("orders"))
			ready(t, second)
			waits(2)
			begun := time.Now()
			require.NoError(t, second.Close())
			require.NoError(t, first.Close())
			took := time.Since(begun)
			begun = time.Now()
			mysqltest.Value[int](t, db, "SELECT 1")
			return took < max(waiting.Parting, 15*time.Since(begun)) // round trips, on a loaded machine
		})
	})
}
