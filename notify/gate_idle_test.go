package notify_test

import (
	"slices"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Ten processes listen and two publish, and nothing happens: what that costs the
// server, in statements, beside the keeper's looks and touches. Then a row comes from a
// writer that knows nothing of the gate, and no wait is found in the slow log.
func TestGateIdle(t *testing.T) {
	if testing.Short() {
		t.Skip("measures for half a minute; TestGateFansOut has listeners that sleep, and one that is woken by a row is in TestAutoChooses")
	}
	window := mysqltest.Size(15*time.Second, 15*time.Second, time.Minute)
	flags := []string{"--slow-query-log=ON", "--long-query-time=1", "--log-output=TABLE"}
	eachOwn(t, flags, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		admin := own.Admin(t)
		db := openProcess(t, config)
		makeTopic(t, db)
		open := func(config *mysql.Config) (*notify.Gate, *spy) {
			looks := &spy{policy: &notify.Fibonacci{Jitter: 0.1}}
			return openGate(t, openProcess(t, config), "orders", notify.GateOptions{Look: func() backoff.BackOff { return looks }}), looks
		}
		caps, err := db.Capabilities(t.Context())
		require.NoError(t, err)
		slowest := func(looks *spy) {
			if caps.GTID {
				require.Eventually(t, looks.sleeps, patience, tick)
				return
			}
			require.Eventually(t, func() bool {
				given := looks.given()
				return len(given) > 0 && given[len(given)-1] > 800*time.Millisecond
			}, patience, tick, "the looks become few")
		}
		// idle is how many statements a second come while all wait, and how many of an
		// account.
		idle := func(window time.Duration, gates []*notify.Gate, account string) (rate float64, accounts int) {
			heads := calm(t, gates...)
			_, err := admin.ExecContext(t.Context(), "TRUNCATE mysql.general_log")
			require.NoError(t, err)
			_, err = admin.ExecContext(t.Context(), "SET GLOBAL general_log = ON")
			require.NoError(t, err)
			before := own.Questions(t)
			waits := make(chan error, len(gates))
			for i, gate := range gates {
				go func() {
					next, err := gate.Wait(t.Context(), heads[i], window)
					assert.Equal(t, heads[i], next, "woken for nothing")
					waits <- err
				}()
			}
			for range gates {
				require.NoError(t, <-waits)
			}
			rate = float64(own.Questions(t)-before-1) / window.Seconds()
			_, err = admin.ExecContext(t.Context(), "SET GLOBAL general_log = OFF")
			require.NoError(t, err)
			require.NoError(t, admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM mysql.general_log"+
				" WHERE user_host LIKE ? AND command_type = 'Query'", account+"%").Scan(&accounts))
			return rate, accounts
		}

		first, looks := open(config)
		gates := []*notify.Gate{first}
		settle(t, first)
		slowest(looks)
		base, _ := idle(window/2, gates, "nobody")

		for len(gates) < 10 {
			gate, _ := open(config)
			settle(t, gate)
			gates = append(gates, gate)
		}
		producer, looks := open(config)
		writer := account(t, own, config)
		bell, _ := open(writer)
		require.NoError(t, producer.Join(t.Context()))
		awaitHandover(t, own, config)
		require.NoError(t, bell.Join(t.Context()))
		awaitBells(t, own, config, 1)
		slowest(looks)
		all, writers := idle(window, gates, writer.User)
		listeners := (all - base) / float64(len(gates))
		t.Logf("statements a second: a keeper alone %.2f, with 10 listeners and 2 producers %.2f: %.3f a listener; %d of the idle writer",
			base, all, listeners, writers)
		assert.LessOrEqual(t, listeners, 0.15)
		assert.Zero(t, writers)

		heads := make([]notify.Head, len(gates))
		for i, gate := range gates {
			heads[i] = settle(t, gate)
		}
		before, begun := len(looks.given()), time.Now()
		insert(t, db)
		after := len(looks.given())
		for i, gate := range gates {
			woken(t, gate, heads[i])
		}
		t.Log("a row of a writer that rings for nobody came after", time.Since(begun))
		if !caps.GTID { // where each commit makes a look
			// One look may have begun before the commit. The next finds it, and others follow soon.
			assert.Less(t, slices.Min(looks.await(t, after+2)[before:after+2]), 100*time.Millisecond)
		}

		logged := func(like string) (n int) {
			require.NoError(t, admin.QueryRowContext(t.Context(),
				"SELECT COUNT(*) FROM mysql.slow_log WHERE sql_text LIKE ?", like).Scan(&n))
			return n
		}
		assert.Zero(t, logged("%GET_LOCK%"), "slow statements")
		conn, err := admin.Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()
		_, err = conn.ExecContext(t.Context(), "DO GET_LOCK(?, ?)", gateLock(config, "keeper"), 2)
		require.NoError(t, err)
		// It is written when the client has its answer already.
		require.Eventually(t, func() bool { return logged("DO GET_LOCK%") > 0 }, patience, tick, "a wait of anybody else")
	})
}

// A keeper that looks does not ask for its locks besides: each look shows them.
func TestGateKeeperIsShownItsLocks(t *testing.T) {
	if testing.Short() {
		t.Skip("counts for half a minute; TestLossByOwnership has the check itself")
	}
	eachOwn(t, []string{"--log-output=TABLE", "--general-log=ON"}, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		admin := own.Admin(t)
		makeTopic(t, openProcess(t, config))
		keeper := publish(t, config) // with a claim
		require.True(t, keeper.Heard())
		asked := func() (n int) {
			require.NoError(t, admin.QueryRowContext(t.Context(), "SELECT COUNT(*) FROM mysql.general_log"+
				" WHERE command_type = 'Query' AND argument LIKE 'SELECT 1, IS_USED_LOCK%<=>%'").Scan(&n))
			return n
		}
		require.Eventually(t, func() bool { return asked() > 1 }, patience, 20*tick, "when it began, and at the first touch")
		before := asked()
		serverTime(t, admin, mysqltest.Size(30*time.Second, 30*time.Second, 70*time.Second))
		assert.Equal(t, before, asked())
	})
}
