package notify_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// closeAll closes gates from many goroutines at once, each more than once.
func closeAll(gates ...*notify.Gate) error {
	errs := make(chan error, 4*len(gates))
	var all sync.WaitGroup
	for range 4 {
		for _, gate := range gates {
			all.Go(func() { errs <- gate.Close() })
		}
	}
	all.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// gateStates are what gates may be about, with their topic there.
var gateStates = map[string]func(t *testing.T, s *mysqltest.Server, config *mysql.Config) []*notify.Gate{
	"unused": func(t *testing.T, _ *mysqltest.Server, config *mysql.Config) []*notify.Gate {
		return []*notify.Gate{openGate(t, openProcess(t, config), "orders", notify.GateOptions{})}
	},
	"a listener that keeps the gate": func(t *testing.T, _ *mysqltest.Server, config *mysql.Config) []*notify.Gate {
		gate, _ := listen(t, config)
		return []*notify.Gate{gate}
	},
	"two producers and two listeners": func(t *testing.T, s *mysqltest.Server, config *mysql.Config) []*notify.Gate {
		one, _ := listen(t, config)
		two, _ := listen(t, config)
		three, four := publish(t, config), publish(t, config)
		awaitBells(t, s, config, 1)
		return []*notify.Gate{one, two, three, four}
	},
	"a process that does everything, and another": func(t *testing.T, _ *mysqltest.Server, config *mysql.Config) (gates []*notify.Gate) {
		for range 2 {
			db := openProcess(t, config)
			for range 3 {
				gate := openGate(t, db, "orders", notify.GateOptions{})
				_, err := gate.Head(t.Context())
				require.NoError(t, err)
				require.NoError(t, gate.Join(t.Context()))
				gates = append(gates, gate)
			}
		}
		return gates
	},
}

// Whatever a gate is about, Close ends it, and nothing of it is left.
func TestGateClose(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, open := range gateStates {
			t.Run(name, func(t *testing.T) {
				config := tidy(t, s)
				makeTopic(t, openProcess(t, config))
				gates := open(t, s, config)
				require.NoError(t, closeAll(gates...))
				requireTidy(t, s, config)
				for _, gate := range gates { // as before, and forever
					_, err := gate.Wait(t.Context(), notify.Head{}, time.Hour)
					require.Error(t, err)
					gate.Ring(0)
				}
				requireTidy(t, s, config)
			})
		}
	})
}

// Gates that are used from all sides are closed at any moment of their lives.
func TestGateCloseAtAnyMoment(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		makeTopic(t, openProcess(t, config))
		const moments = 15
		for i := range moments {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*3*time.Millisecond)
			var gates []*notify.Gate
			var users sync.WaitGroup
			for range 2 {
				db := openProcess(t, config)
				for range 2 {
					gate := openGate(t, db, "orders", notify.GateOptions{})
					gates = append(gates, gate)
					users.Go(func() {
						for err := error(nil); err == nil; {
							_, err = gate.Wait(context.Background(), notify.Head{}, time.Millisecond)
						}
					})
					users.Go(func() {
						for ctx.Err() == nil {
							gate.Ring(0)
							_ = gate.Join(ctx)
						}
					})
				}
			}
			<-ctx.Done()
			cancel()
			require.NoError(t, closeAll(gates...))
			users.Wait()
			requireTidy(t, s, config)
		}
	})
}

// Nor is there anything left of a process that leaves alone: what it waits for, and
// what waits for it, others hold on.
func TestGateCloseOfOne(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateClose has the same states")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		makeTopic(t, openProcess(t, config))
		keeper, leaves := account(t, s, config), account(t, s, config)
		publish(t, keeper)
		awaitHandover(t, s, config)
		listener, _ := listen(t, config)
		for i := range 3 {
			listens, produces := i%3 != 1, i%3 != 0
			gate := openGate(t, openProcess(t, leaves), "orders", notify.GateOptions{})
			if listens {
				settle(t, gate)
			}
			if produces {
				require.NoError(t, gate.Join(t.Context()))
			}
			head := settle(t, listener)
			require.NoError(t, gate.Close())
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				assert.Empty(c, sessions(t, admin, config, "USER = ?", leaves.User), "its own")
				assert.Len(c, sessions(t, admin, config, "USER = ?", keeper.User), 2, "the keeper's, without one for its bell")
			}, atOnce, tick)
			if produces {
				woken(t, listener, head) // a bell that falls rings
			}
		}
	})
}

// A server that does not answer keeps nobody from closing.
func TestGateCloseWhileTheServerIsFrozen(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for timeouts; TestGateClose and TestGateCloseAtAnyMoment have the ends of gates")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		for name, open := range gateStates {
			t.Run(name, func(t *testing.T) {
				config := own.Database(t)
				makeTopic(t, openProcess(t, config))
				gates := open(t, own, config)
				looks := &spy{policy: backoff.NewConstantBackOff(5 * time.Millisecond)}
				keeper := openGate(t, openProcess(t, config), "others", notify.GateOptions{Look: func() backoff.BackOff { return looks }})
				_, err := keeper.Head(t.Context())
				require.NoError(t, err)
				looks.await(t, 3)
				own.Freeze()
				before := -1
				require.Eventually(t, func() bool { // until one is under way
					n := before
					before = len(looks.given())
					return before == n
				}, patience, 10*tick)
				begun := time.Now()
				closed := mysqltest.Result(func() error { return closeAll(append(gates, keeper)...) })
				require.NoError(t, mysqltest.Receive(t, closed))
				t.Log("closed in", time.Since(begun))
				assert.Less(t, time.Since(begun), 20*time.Second)
				own.Thaw()
			})
		}
	})
}

// The DB may be closed first. The gates' waits on the server then end within a second.
func TestGateCloseAfterItsDB(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateClose has the same states")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for name, open := range gateStates {
			t.Run(name, func(t *testing.T) {
				config := s.Database(t)
				makeTopic(t, openProcess(t, config))
				gates := open(t, s, config)
				for _, gate := range gates {
					require.NoError(t, gate.DB().Close())
				}
				require.NoError(t, closeAll(gates...))
			})
		}
	})
}
