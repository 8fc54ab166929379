package notify_test

import (
	"context"
	"database/sql"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// openProcess is a DB as another process has it: it shares nothing with the others but
// the server. Its pool keeps no connection, so that the sessions which the server
// shows are the gates'.
func openProcess(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db := openDB(tb, config)
	db.Pool().SetMaxIdleConns(0)
	return db
}

func openGate(tb testing.TB, db *notify.DB, topic string, options notify.GateOptions) *notify.Gate {
	tb.Helper()
	gate := notify.NewGate(db, topic, options)
	tb.Cleanup(func() { require.NoError(tb, gate.Close()) })
	return gate
}

// listen is a gate of a process's own that listens to "orders", and the head that it has seen.
func listen(tb testing.TB, config *mysql.Config) (*notify.Gate, notify.Head) {
	tb.Helper()
	gate := openGate(tb, openProcess(tb, config), "orders", notify.GateOptions{})
	head, err := gate.Head(tb.Context())
	require.NoError(tb, err)
	return gate, head
}

// publish is a gate of a process's own that has joined "orders".
func publish(tb testing.TB, config *mysql.Config) *notify.Gate {
	tb.Helper()
	gate := openGate(tb, openProcess(tb, config), "orders", notify.GateOptions{})
	require.NoError(tb, gate.Join(tb.Context()))
	return gate
}

// joinAll joins with all at once: one at a time each would wait for a look.
func joinAll(tb testing.TB, gates ...*notify.Gate) {
	tb.Helper()
	errs := make(chan error, len(gates))
	for _, gate := range gates {
		go func() { errs <- gate.Join(tb.Context()) }()
	}
	for range gates {
		require.NoError(tb, mysqltest.Receive(tb, errs))
	}
}

// settle waits until nothing wakes the gate, and returns its head.
func settle(tb testing.TB, gate notify.Waiter) notify.Head {
	tb.Helper()
	head, err := gate.Head(tb.Context())
	require.NoError(tb, err)
	for {
		next, err := gate.Wait(tb.Context(), head, 100*time.Millisecond)
		require.NoError(tb, err)
		if next == head {
			return head
		}
		head = next
	}
}

// calm waits until nothing wakes the gates, and returns their heads, for a test that then
// says that nothing does: a listener that is held up wakes for nothing when what it saw
// is 200 ms old.
func calm[W notify.Waiter](tb testing.TB, gates ...W) []notify.Head {
	tb.Helper()
	const quiet = time.Second
	heads := make([]notify.Head, len(gates))
	for i, gate := range gates {
		heads[i] = settle(tb, gate)
	}
	for woken := true; woken; {
		woken = false
		for i, gate := range gates {
			bound := quiet // of the first, and of all with it
			if i > 0 {
				bound = 0
			}
			head, err := gate.Wait(tb.Context(), heads[i], bound)
			require.NoError(tb, err)
			woken = woken || head != heads[i]
			heads[i] = head
		}
	}
	return heads
}

// woken waits until the gate is woken.
func woken(tb testing.TB, gate *notify.Gate, seen notify.Head) notify.Head {
	tb.Helper()
	head, err := gate.Wait(tb.Context(), seen, patience)
	require.NoError(tb, err)
	require.NotEqual(tb, seen, head, "not woken in %v", patience)
	return head
}

func gateLock(config *mysql.Config, of string) string {
	return "mqnotify:gate:" + config.DBName + ":orders:" + of
}

// holder is the session that holds one of the gate's locks, 0 for none.
func holder(tb testing.TB, admin *sql.DB, lock string) (id uint64) {
	tb.Helper()
	require.NoError(tb, admin.QueryRowContext(context.Background(), "SELECT COALESCE(IS_USED_LOCK(?), 0)", lock).Scan(&id))
	return id
}

// sessions are the server's sessions in the database that fulfil the condition.
func sessions(tb testing.TB, admin *sql.DB, config *mysql.Config, condition string, args ...any) (ids []uint64) {
	tb.Helper()
	rows, err := admin.QueryContext(context.Background(), "SELECT ID FROM information_schema.PROCESSLIST"+
		" WHERE DB = ? AND "+condition+" ORDER BY ID", append([]any{config.DBName}, args...)...)
	require.NoError(tb, err)
	defer rows.Close()
	for rows.Next() {
		var id uint64
		require.NoError(tb, rows.Scan(&id))
		ids = append(ids, id)
	}
	require.NoError(tb, rows.Err())
	return ids
}

// awaitHandover waits until the producer that claims the gate keeps it.
func awaitHandover(tb testing.TB, s *mysqltest.Server, config *mysql.Config) {
	tb.Helper()
	awaitHandoverOf(tb, s, config, "orders")
}

func awaitHandoverOf(tb testing.TB, s *mysqltest.Server, config *mysql.Config, topic string) {
	tb.Helper()
	admin := s.Admin(tb)
	keeper, claim := notify.GateLocks(config.DBName, topic)
	require.Eventually(tb, func() bool {
		claimant := holder(tb, admin, claim)
		return claimant != 0 && claimant == holder(tb, admin, keeper)
	}, patience, tick)
}

// account is another account that may do anything in the database, so that its
// processes' sessions can be told from others'.
func account(tb testing.TB, s *mysqltest.Server, config *mysql.Config) *mysql.Config {
	tb.Helper()
	return s.User(tb, config, "ALL ON "+config.DBName+".*")
}

// Whoever listens in a process, one session of it is parked, and one ring wakes all.
func TestGateFansOut(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		producer := publish(t, config)
		many := account(t, s, config)
		db := openProcess(t, many)
		const listeners = 50
		var all, ready sync.WaitGroup
		var awake atomic.Int32
		begin := make(chan struct{})
		for range listeners {
			gate := openGate(t, db, "orders", notify.GateOptions{})
			ready.Add(1)
			all.Go(func() {
				_, err := gate.Head(t.Context())
				assert.NoError(t, err)
				ready.Done()
				<-begin
				head, err := gate.Head(t.Context())
				assert.NoError(t, err)
				ready.Done()
				next, err := gate.Wait(t.Context(), head, patience)
				assert.NoError(t, err)
				if next != head {
					awake.Add(1)
				}
			})
		}
		ready.Wait()
		calm(t, openGate(t, db, "orders", notify.GateOptions{}))
		ready.Add(listeners)
		close(begin)
		ready.Wait()
		require.Zero(t, awake.Load())
		admin := s.Admin(t)
		require.Len(t, sessions(t, admin, config, "USER = ?", many.User), 1)
		require.EventuallyWithT(t, func(c *assert.CollectT) { // parked
			assert.Len(c, sessions(t, admin, config, "USER = ? AND STATE = ?", many.User, waiting), 1)
		}, patience, tick)
		producer.Ring(0)
		all.Wait()
		require.EqualValues(t, listeners, awake.Load())
	})
}

// What the comment of Gate says of the sessions that a process has.
func TestGateConnections(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		var topics []string
		for i := range 10 {
			topics = append(topics, fmt.Sprintf("topic%d", i))
		}
		type process struct {
			db     *notify.DB
			config *mysql.Config
		}
		start := func() process {
			config := account(t, s, config)
			return process{openProcess(t, config), config}
		}
		listenAll := func(p process) {
			for _, topic := range topics {
				for range 3 {
					_, err := openGate(t, p.db, topic, notify.GateOptions{}).Head(t.Context())
					require.NoError(t, err)
				}
			}
		}
		join := func(p process) *notify.Gate {
			gate := openGate(t, p.db, topics[0], notify.GateOptions{})
			require.NoError(t, gate.Join(t.Context()))
			return gate
		}
		requireSessions := func(p process, want int, why string) {
			t.Helper()
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Len(c, sessions(t, admin, config, "USER = ?", p.config.User), want, why)
			}, patience, tick)
		}
		keeper, listener, first, second := start(), start(), start(), start()
		listenAll(keeper)
		requireSessions(keeper, len(topics)+1, "one a topic, and one for all looks")
		listenAll(listener)
		requireSessions(listener, len(topics), "one a topic")
		join(first)
		requireSessions(first, 2, "it keeps one gate, and looks")
		requireSessions(keeper, len(topics)+1, "it keeps nine, and waits for the tenth")
		gate := join(second)
		requireSessions(second, 1, "a bell")
		requireSessions(first, 3, "it waits on the bell")
		_, err := openGate(t, second.db, topics[0], notify.GateOptions{}).Head(t.Context())
		require.NoError(t, err)
		requireSessions(second, 2, "a bell, and a listener")
		require.NoError(t, gate.Close())
		requireSessions(second, 1, "a listener")
		requireSessions(first, 2, "no bell any more")
	})
}

// A listener keeps the gate until a producer that lives is there: it has it from then
// on, with nobody between the two, and a listener again when it has left.
func TestGateHandover(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateStress has handovers by the dozen")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		db := openProcess(t, config)
		makeTopic(t, db)
		// Looks so far apart that the claimant has tried for long when it is seen.
		options := notify.GateOptions{Look: func() backoff.BackOff { return backoff.NewConstantBackOff(2 * time.Second) }}
		var gates []*notify.Gate
		for range 3 {
			gate := openGate(t, openProcess(t, config), "orders", options)
			gates = append(gates, gate)
			settle(t, gate)
		}
		keeper := func() uint64 { return holder(t, admin, gateLock(config, "keeper")) }
		const rounds = 3
		thirds := 0 // handovers in which a third party kept it in between
		for range rounds {
			before := keeper()
			require.NotZero(t, before)
			require.Zero(t, holder(t, admin, gateLock(config, "claim")))
			producer := openGate(t, db, "orders", options)
			joined := mysqltest.Result(func() error { return producer.Join(t.Context()) })
			claimant, third := uint64(0), 0
			require.Eventually(t, func() bool {
				now := keeper()
				if now == 0 || now == before {
					return false
				}
				if claimant = holder(t, admin, gateLock(config, "claim")); now != claimant {
					third = 1
				}
				return now == claimant
			}, patience, time.Millisecond)
			thirds += third
			require.NoError(t, mysqltest.Receive(t, joined))

			wake := func(ring func()) {
				heads := make([]notify.Head, len(gates))
				for i, gate := range gates {
					heads[i] = settle(t, gate)
				}
				ring()
				for i, gate := range gates {
					woken(t, gate, heads[i])
				}
			}
			wake(func() { producer.Ring(0) })
			wake(func() { require.NoError(t, producer.Close()) })
			require.Eventually(t, func() bool {
				now := keeper()
				return now != 0 && now != claimant && holder(t, admin, gateLock(config, "claim")) == 0
			}, patience, tick)
		}
		// For half a second they leave it to the claimant, which tries each 25 ms, but for a stall.
		assert.Less(t, thirds, rounds, "another listener keeps it")
	})
}
