package notify_test

import (
	"context"
	"fmt"
	"log/slog"
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

// watchful are looks that find bells and claims at once, so that a test need not wait
// for them.
var watchful = notify.GateOptions{
	Look:   func() backoff.BackOff { return backoff.NewConstantBackOff(20 * time.Millisecond) },
	Logger: slog.New(slog.DiscardHandler),
}

const (
	keepingProducer = "keeps the gate, as a producer"
	keepingListener = "keeps the gate, as a listener"
)

// keepGate is a process of TestGateFailover: it keeps the gate, and a lock beside it, until
// it is killed.
func keepGate(ctx context.Context, db *notify.DB, role string) error {
	session, err := db.Session(ctx, notify.SessionOptions{})
	if err != nil {
		return err
	}
	if _, err := session.TryLock(ctx, lockName(db, "bare")); err != nil {
		return err
	}
	gate := notify.NewGate(db, "orders", watchful)
	if role == keepingProducer {
		err = gate.Join(ctx)
	} else {
		_, err = gate.Head(ctx)
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A keeper's process is killed with kill -9. What is published after that reaches all
// listeners, over another keeper, little later than the server frees a bare lock of
// the same process.
func TestGateFailover(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, role := range []string{keepingProducer, keepingListener} {
			t.Run(role, func(t *testing.T) {
				config := tidy(t, s)
				admin := s.Admin(t)
				makeTopic(t, openProcess(t, config))
				var bare, keepers, rows []time.Duration
				for range mysqltest.Size(1, 3, 5) {
					b, k, r := failOver(t, s, config, role)
					bare, keepers, rows = append(bare, b), append(keepers, k), append(rows, r)
					require.Eventually(t, func() bool { return len(sessions(t, admin, config, "ID <> CONNECTION_ID()")) == 0 }, patience, tick)
				}
				median := func(all []time.Duration) time.Duration {
					slices.Sort(all)
					return all[len(all)/2]
				}
				t.Logf("after the kill: a bare lock is free %v, another keeper there %v, its row read by all %v; longest %v, %v, %v",
					median(bare), median(keepers), median(rows), slices.Max(bare), slices.Max(keepers), slices.Max(rows))
				least := mysqltest.Size(5*time.Second, 5*time.Second, 50*time.Millisecond) // for a machine that has other work too
				assert.Less(t, median(rows), max(least, 25*median(bare)))
			})
		}
	})
}

// failOver is a round of it: how long after the kill a bare lock is free, another
// keeper there, and the next row read by all.
func failOver(t *testing.T, s *mysqltest.Server, config *mysql.Config, role string) (bare, keeper, row time.Duration) {
	t.Helper()
	admin := s.Admin(t)
	dies := account(t, s, config)
	kill := startParty(t, party{role, dies.FormatDSN()})
	var before uint64
	require.Eventually(t, func() bool {
		before = holder(t, admin, gateLock(config, "keeper"))
		return before != 0
	}, patience, tick)
	t.Run("", func(t *testing.T) { // so that its cleanups close all
		followers := []*follower{follow(t, config, watchful), follow(t, config, watchful), follow(t, config, watchful)}
		db := openProcess(t, config)
		gate := openGate(t, db, "orders", watchful)
		if role == keepingProducer {
			require.NoError(t, gate.Join(t.Context()))
		}
		session := openSession(t, db, 0)
		freed := mysqltest.Result(func() time.Time {
			mustLock(t, session, lockName(db, "bare"))
			return time.Now()
		})
		mysqltest.AwaitState(t, admin, session.ID(), waiting)
		kept := mysqltest.Result(func() time.Time {
			for range time.Tick(time.Millisecond) {
				if now := holder(t, admin, gateLock(config, "keeper")); now != 0 && now != before {
					break
				}
			}
			return time.Now()
		})
		require.Equal(t, before, holder(t, admin, gateLock(config, "keeper")))
		begun := time.Now()
		kill()
		id := send(t, db, gate)
		for _, follower := range followers {
			row = max(row, follower.has(t, id).Sub(begun))
		}
		bare, keeper = mysqltest.Receive(t, freed).Sub(begun), mysqltest.Receive(t, kept).Sub(begun)
	})
	return bare, keeper, row
}

// The keeper's host vanishes without a word: its connections stay, and say nothing.
// The server ends them after KeeperTimeout, and so does the keeper on its side, that
// has become a stranger when it is back.
func TestGateKeeperVanishes(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for a timeout; TestGateStressFaults has keepers that die")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		options := watchful
		options.KeeperTimeout = short
		for _, produces := range []bool{true, false} {
			t.Run(fmt.Sprint("a producer: ", produces), func(t *testing.T) {
				t.Parallel()
				config := tidy(t, s)
				admin := s.Admin(t)
				makeTopic(t, openProcess(t, config))
				proxy := s.Proxy(t)
				vanishes := openGate(t, openProcess(t, proxy.Config(config)), "orders", options)
				if produces {
					require.NoError(t, vanishes.Join(t.Context()))
					awaitHandover(t, s, config)
				} else {
					settle(t, vanishes)
				}
				before := holder(t, admin, gateLock(config, "keeper"))
				require.NotZero(t, before)
				followers := []*follower{follow(t, config, options), follow(t, config, options)}
				db := openProcess(t, config)
				gate := openGate(t, db, "orders", options)
				if produces { // else it would keep the gate itself
					require.NoError(t, gate.Join(t.Context()))
				}
				proxy.Freeze()
				begun := time.Now()
				require.Equal(t, before, holder(t, admin, gateLock(config, "keeper")))
				id := send(t, db, gate)
				var row time.Duration
				for _, follower := range followers {
					row = max(row, follower.has(t, id).Sub(begun))
				}
				t.Logf("the next row is read by all %v after", row)
				assert.Less(t, row, options.KeeperTimeout+10*time.Second)
				proxy.Thaw()
				id = send(t, db, vanishes)
				for _, follower := range followers {
					follower.has(t, id)
				}
				if !produces {
					require.Eventually(t, func() bool {
						_, err := vanishes.Head(t.Context())
						return err == nil
					}, patience, tick, "it listens again")
					head := settle(t, vanishes)
					gate.Ring(0)
					woken(t, vanishes, head)
				}
			})
		}
	})
}

// What failed before does not fail who comes anew: the process may have been without
// a producer since.
func TestGateForgetsOldFailures(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateStressFaults has failures that are survived")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		publish(t, config)
		proxy := s.Proxy(t)
		db := openProcess(t, proxy.Config(config))
		listener := openGate(t, db, "orders", notify.GateOptions{})
		_, err := listener.Head(t.Context())
		require.NoError(t, err)
		for range 3 {
			producer := notify.NewGate(db, "orders", notify.GateOptions{})
			require.NoError(t, producer.Join(t.Context()))
			proxy.Down()
			again := notify.NewGate(db, "orders", notify.GateOptions{})
			require.Eventually(t, func() bool { return again.Join(t.Context()) != nil }, patience, tick)
			require.NoError(t, again.Close())
			require.NoError(t, producer.Close())
			proxy.Up()
			require.Eventually(t, func() bool {
				_, err := listener.Head(t.Context())
				return err == nil
			}, patience, tick)
		}
	})
}

// Who joins while the keeper does not answer has joined soon after another keeps the
// gate, however long that takes.
func TestGateJoinWithoutAnAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for timeouts; TestGateHeard has producers that join")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		options := watchful
		options.KeeperTimeout = 5 * time.Second
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		proxy := s.Proxy(t)
		vanishes := openGate(t, openProcess(t, proxy.Config(config)), "orders", options)
		require.NoError(t, vanishes.Join(t.Context()))
		awaitHandover(t, s, config)
		listener, _ := listen(t, config)
		head := settle(t, listener)
		proxy.Freeze()
		defer proxy.Thaw()
		joined := mysqltest.Result(func() error {
			return openGate(t, openProcess(t, config), "orders", options).Join(t.Context())
		})
		woken(t, listener, head) // another keeps the gate
		require.NoError(t, mysqltest.Receive(t, joined))
	})
}
