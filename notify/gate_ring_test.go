package notify_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A producer that does not keep the gate wakes the listeners over the keeper. There is
// no row, so that no look finds anything.
func TestGateBell(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		listener, _ := listen(t, config)
		publish(t, config)
		second := publish(t, config)
		awaitBells(t, s, config, 1)
		head := settle(t, listener)
		for range 20 {
			second.Ring(0)
			head = woken(t, listener, head)
		}
	})
}

// Producers that find no free bell publish all the same: the keeper's look finds what
// they insert. They have one as soon as another producer is gone.
func TestGateMoreProducersThanBells(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateStress has producers that come and go")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const bells = 32
		config := tidy(t, s)
		admin := s.Admin(t)
		db := openProcess(t, config)
		makeTopic(t, db)
		listener, _ := listen(t, config)
		taken := func() (n int) {
			for i := range bells {
				if holder(t, admin, gateLock(config, "bell"+strconv.FormatInt(int64(i), 36))) != 0 {
					n++
				}
			}
			return n
		}
		publish(t, config)
		awaitHandover(t, s, config)
		keepers := taken() // it may have one, which is of no use
		producers := make([]*notify.Gate, bells-keepers)
		for i := range producers {
			producers[i] = openGate(t, openProcess(t, config), "orders", notify.GateOptions{})
		}
		joinAll(t, producers...)
		require.Equal(t, bells, taken())
		last := publish(t, config)
		require.False(t, last.Heard(), "it has no bell")
		require.True(t, producers[0].Heard())
		awaitBells(t, s, config, bells-keepers)
		head := settle(t, listener)
		insert(t, db)
		last.Ring(1)
		woken(t, listener, head)

		for _, producer := range producers[:2] {
			require.NoError(t, producer.Close())
		}
		// Or one more: last asks for one at each ring, and may ring already.
		require.Eventually(t, func() bool { n := taken(); return n == bells-2 || n == bells-1 }, patience, tick)
		last.Ring(0)
		require.Eventually(t, func() bool { return taken() == bells-1 }, patience, tick)
		require.Eventually(t, last.Heard, patience, tick)
		awaitBells(t, s, config, bells-1-keepers)
		head = settle(t, listener)
		last.Ring(0)
		woken(t, listener, head)
	})
}

// awaitBells waits until a keeper waits on so many bells.
func awaitBells(t *testing.T, s *mysqltest.Server, config *mysql.Config, n int) {
	t.Helper()
	admin := s.Admin(t)
	require.Eventually(t, func() bool {
		return len(sessions(t, admin, config, "STATE = ? AND INFO LIKE '%:bell%'", waiting)) == n
	}, patience, tick)
}

// A bell that is gone before the keeper waited on it may have been rung: the keeper rings.
func TestGateBellUnheard(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		// Each look that sees the bell rings, so that settle needs a pause between them.
		looks := &spy{policy: backoff.NewConstantBackOff(500 * time.Millisecond)}
		keeper := openGate(t, openProcess(t, config), "orders", notify.GateOptions{Look: func() backoff.BackOff { return looks }})
		require.NoError(t, keeper.Join(t.Context()))
		listener, _ := listen(t, config)
		awaitHandover(t, s, config)
		other := openSession(t, openProcess(t, config), never)
		bell := mustLock(t, other, gateLock(config, "bell0")) // and no phase to wait for
		looks.await(t, len(looks.given())+2)                  // the keeper has seen it
		head := settle(t, listener)
		require.NoError(t, bell.Release(t.Context()))
		woken(t, listener, head)
	})
}

// A gate is heard when it keeps the gate, or its bell is known or will be to who keeps it, and
// not before it has joined or after it is closed.
func TestGateHeard(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		listener, _ := listen(t, config)
		require.True(t, listener.Heard(), "it keeps the gate")
		unused := openGate(t, openProcess(t, config), "orders", notify.GateOptions{})
		require.False(t, unused.Heard())
		keeper := publish(t, config)
		require.True(t, keeper.Heard())
		awaitHandover(t, s, config)
		require.True(t, keeper.Heard())
		require.Eventually(t, func() bool { return !listener.Heard() }, patience, tick, "it listens and rings nothing")
		second := publish(t, config)
		require.True(t, second.Heard(), "it has a bell")
		require.NoError(t, second.Close())
		require.False(t, second.Heard())
	})
}

// Whatever the server does, and whatever the gate's sessions are about, Ring returns.
func TestGateRingNeverBlocks(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateRingAlone has rings in the same states")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := tidy(t, own)
		makeTopic(t, openProcess(t, config))
		keeper, bell := publish(t, config), publish(t, config)
		unused := openGate(t, openProcess(t, config), "orders", notify.GateOptions{})
		listener, _ := listen(t, config)
		head := calm(t, listener)[0] // what wakes it is one of the rings
		own.Freeze()
		rung := mysqltest.Result(func() error {
			for i := range uint64(10_000) {
				keeper.Ring(i)
				bell.Ring(i)
				unused.Ring(i)
			}
			return nil
		})
		require.NoError(t, mysqltest.Receive(t, rung))
		own.Thaw()
		woken(t, listener, head)
	})
}

// A ring wakes though its Gate never joined, or is closed right after it.
func TestGateRingAlone(t *testing.T) {
	cases := map[string]struct {
		open  func(t *testing.T, config *mysql.Config, listener *notify.DB) *notify.Gate
		close bool
		row   bool
	}{
		"keeps the gate": {
			func(t *testing.T, config *mysql.Config, _ *notify.DB) *notify.Gate { return publish(t, config) }, true, false,
		},
		"has a bell": {
			func(t *testing.T, config *mysql.Config, _ *notify.DB) *notify.Gate {
				publish(t, config)
				return publish(t, config)
			}, true, false,
		},
		"joins by itself":            {unjoined, false, false},
		"too short-lived for a bell": {unjoined, true, true},
		"in the listener's process": {
			func(t *testing.T, _ *mysql.Config, listener *notify.DB) *notify.Gate {
				return openGate(t, listener, "orders", notify.GateOptions{})
			}, true, true,
		},
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, c := range cases {
			t.Run(name, func(t *testing.T) {
				config := tidy(t, s)
				db := openProcess(t, config)
				makeTopic(t, db)
				listener := openGate(t, db, "orders", notify.GateOptions{})
				gate := c.open(t, config, db)
				head := settle(t, listener)
				if c.row {
					insert(t, db)
				}
				gate.Ring(0)
				if c.close {
					require.NoError(t, gate.Close())
				}
				woken(t, listener, head)
			})
		}
	})
}

func unjoined(t *testing.T, config *mysql.Config, _ *notify.DB) *notify.Gate {
	return openGate(t, openProcess(t, config), "orders", notify.GateOptions{})
}

// A producer is heard by who has lent his ear to its bell, also when he is about to wait again.
func TestGateEar(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		keeper := openSession(t, openProcess(t, config), never) // in no hurry to wait
		mustLock(t, keeper, gateLock(config, "keeper"))
		mustLock(t, keeper, gateLock(config, "claim"))
		producer := openGate(t, openProcess(t, config), "orders", notify.GateOptions{})
		joined := mysqltest.Result(func() error { return producer.Join(t.Context()) })
		var bell string
		var owner uint64
		require.Eventually(t, func() bool {
			for i := range int64(32) {
				bell = gateLock(config, "bell"+strconv.FormatInt(i, 36))
				if owner = holder(t, admin, bell); owner != 0 {
					return true
				}
			}
			return false
		}, patience, tick)
		require.Empty(t, joined)
		mustLock(t, keeper, bell+":"+strconv.FormatUint(owner, 36)+":1:0")
		require.NoError(t, mysqltest.Receive(t, joined))
		require.True(t, producer.Heard())
	})
}
