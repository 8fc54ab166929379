package routines_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// While a process leads, the server runs no statements for callers that wait.
func TestIdleCallers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		s = s.Start(t)
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		callers := mysqltest.Many(20, 100, 100)
		var results []<-chan any
		for range callers {
			results = append(results, connect(t, db).waits(t, db, "orders", 0, 600))
		}
		statements := func() int { return counted(t, db, "Queries") + counted(t, db, "Com_select") }
		mysqltest.Eventually(t, "all wait for the lock", func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE = ?",
				mysqltest.WaitsForLock) == callers+1
		})
		own := statements()
		own = statements() - own                                                            // of the queries for the counters
		mysqltest.Eventually(t, "a window without statements of the callers", func() bool { // the leader wakes all about once a minute
			before, begun := statements(), time.Now()
			mysqltest.Window(t, 2*time.Second)
			sent := statements() - before - own
			t.Logf("%s: %d statements in %v by %d callers and the leader's process", s.Name(), sent, time.Since(begun), callers)
			return sent <= 2*2 // the leader's process may send one statement a second, which counts twice
		})
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		for _, result := range results {
			require.Equal(t, value(1), mysqltest.Receive(t, result))
		}
	})
}

// counted returns a status counter of the server.
func counted(tb testing.TB, db *notify.DB, name string) (n int) {
	tb.Helper()
	require.NoError(tb, db.Pool().QueryRowContext(tb.Context(), "SHOW GLOBAL STATUS LIKE '"+name+"'").Scan(&name, &n))
	return n
}

// Without a leader a caller reads the table often at first, and once a second after a few seconds.
func TestPollingCallers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		s = s.Start(t)
		_, db := database(t, s, "orders")
		result := connect(t, db).waits(t, db, "orders", 0, 60)
		mysqltest.Window(t, 4*time.Second)
		before, begun := counted(t, db, "Com_select"), time.Now()
		mysqltest.Window(t, 3*time.Second)
		sent, took := counted(t, db, "Com_select")-before, time.Since(begun)
		t.Logf("%s: %d reads in %v", s.Name(), sent, took)
		require.Positive(t, sent)
		require.LessOrEqual(t, float64(sent), took.Seconds()+1)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, value(1), mysqltest.Receive(t, result))
	})
}

// A caller in SQL is woken about as soon as a consumer in Go.
func TestWokenSoon(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		far := open(t, config)
		c, err := consumer.New(far, "orders", consumer.Options{From: "beginning", Logger: mysqltest.Logger(t, slog.LevelWarn)})
		require.NoError(t, err)
		handled := make(chan time.Time, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := mysqltest.Result(func() error {
			return c.Run(ctx, consumer.Each(func(context.Context, consumer.Message) error { handled <- time.Now(); return nil }))
		})
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('first')")
		mysqltest.Receive(t, handled)
		caller := connect(t, db)
		var inGo, inSQL []time.Duration
		for id := range uint64(mysqltest.Many(20, 60, 300)) {
			woken := make(chan time.Time, 1)
			result := mysqltest.Result(func() any {
				head, err := caller.head(t.Context(), "orders", id+1, 60)
				woken <- time.Now()
				return errors.Join(err, map[bool]error{false: errors.New("no head")}[head.Valid])
			})
			mysqltest.AwaitState(t, db.Pool(), caller.id, mysqltest.WaitsForLock)
			begun := time.Now()
			mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
			inGo = append(inGo, mysqltest.Receive(t, handled).Sub(begun))
			inSQL = append(inSQL, mysqltest.Receive(t, woken).Sub(begun))
			require.Nil(t, mysqltest.Receive(t, result))
		}
		slices.Sort(inGo)
		slices.Sort(inSQL)
		t.Logf("%s: INSERT to handler %v, to the end of mqnotify_wait %v", s.Name(), inGo[len(inGo)/2], inSQL[len(inSQL)/2])
		require.LessOrEqual(t, inSQL[len(inSQL)/2], 3*inGo[len(inGo)/2]+5*time.Millisecond)
		cancel()
		require.NoError(t, mysqltest.Receive(t, ended))
	})
}

// Without a wake trigger a caller finds rows by polling. A caller that waits while the trigger is removed learns of the
// removal.
func TestWithoutTrigger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		caller := connect(t, db)
		for id := range uint64(2) {
			result := caller.waits(t, db, "orders", id, 60)
			if id == 0 {
				mysqltest.AwaitState(t, db.Pool(), caller.id, mysqltest.WaitsForLock)
				_, err := wake.Remove(t.Context(), db, wake.Options{Logger: mysqltest.Logger(t, slog.LevelWarn)}, "orders")
				require.NoError(t, err)
			}
			mysqltest.AwaitState(t, db.Pool(), caller.id, "User sleep")
			mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
			require.Equal(t, value(id+1), mysqltest.Receive(t, result))
		}
	})
}

// A KILL QUERY ends a caller's wait with the server's error. The session then holds no lock and has its own isolation level.
func TestCallerIsKilled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, leader := range []bool{true, false} {
			config, db := database(t, s, "orders")
			state := "User sleep"
			if leader {
				lead(t, config, "orders")
				state = mysqltest.WaitsForLock
			}
			caller := connect(t, db)
			result := caller.waits(t, db, "orders", 0, 600)
			mysqltest.AwaitState(t, db.Pool(), caller.id, state)
			require.True(t, mysqltest.KillQuery(t, db.Pool(), caller.id))
			failed, _ := mysqltest.Receive(t, result).(error)
			refused(t, failed, "70100", "interrupted")
			require.Zero(t, mysqltest.Value[int](t, caller, "SELECT RELEASE_ALL_LOCKS()"))
			writer := connect(t, db, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')")
			require.Zero(t, mysqltest.Value[int](t, caller, "SELECT COUNT(*) FROM orders"), "the session reads only committed rows")
			mysqltest.Exec(t, writer, "COMMIT")
			head, err := caller.head(t.Context(), "orders", 0, 60)
			require.NoError(t, err)
			require.Equal(t, value(1), head)
		}
	})
}

// When the client of a caller dies, the session ends soon after, or, if the caller polls, at the end of its wait.
func TestCallerDies(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, leader := range []bool{true, false} {
			t.Run(fmt.Sprint("leader ", leader), func(t *testing.T) {
				t.Parallel()
				config, db := database(t, s, "orders")
				seconds := 15
				if leader {
					seconds = 600
					lead(t, config, "orders")
				}
				caller := connect(t, open(t, config))
				ctx, die := context.WithCancel(t.Context())
				result := mysqltest.Result(func() error { _, err := caller.head(ctx, "orders", 0, seconds); return err })
				mysqltest.AwaitState(t, db.Pool(), caller.id, map[bool]string{true: mysqltest.WaitsForLock, false: "User sleep"}[leader])
				die() // closes the socket
				require.Error(t, mysqltest.Receive(t, result))
				mysqltest.Eventually(t, "the session ends", func() bool {
					return !mysqltest.Value[bool](t, db.Pool(), "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST WHERE ID = ?", caller.id)
				})
			})
		}
	})
}

// A wait keeps the advisory locks that the caller holds.
func TestLocksOfTheCallerStay(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		lead(t, config, "orders")
		caller := connect(t, db, "DO GET_LOCK('mine', 0)")
		result := caller.waits(t, db, "orders", 0, 60)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
		require.Equal(t, value(1), mysqltest.Receive(t, result))
		require.Equal(t, 1, mysqltest.Value[int](t, caller, "SELECT RELEASE_ALL_LOCKS()"))
	})
}
