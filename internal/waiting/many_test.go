package waiting_test

import (
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// The invariant: no hint is lost, whatever happens to the session or the process that leads. The next row is written when
// every process has seen the last one, so that no later hint hides a lost one.
func TestManyWaits(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		makeTopic(t, db, config, "orders", true)
		random := mysqltest.Random(t)
		news := make(chan struct{}, 1)
		start := func() *listenerProcess {
			return startListener(t, config, func(uint64) {
				select {
				case news <- struct{}{}:
				default:
				}
			})
		}
		processes := []*listenerProcess{start(), start(), start()}
		last := uint64(0)
		seen := func(by []*listenerProcess) {
			t.Helper()
			limit := time.NewTimer(45 * time.Second) // a leader's own timeout comes after 70 s
			defer limit.Stop()
			for _, p := range by {
				for {
					if _, ok := p.at(last); ok {
						break
					}
					select {
					case <-news:
					case <-limit.C:
						t.Fatalf("process %d does not see row %d", p.command.Process.Pid, last)
					}
				}
			}
		}
		insert := func() {
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('x')")
			last++
		}
		leader := func() uint64 {
			name := waiting.LeaderLock(config.DBName, "orders")
			return mysqltest.Value[uint64](t, db, "SELECT COALESCE(IS_USED_LOCK(?), 0)", name)
		}
		counts := make(map[string]int)
		faults := []struct {
			name string
			f    func(victim int)
		}{
			{"KILL", func(int) { mysqltest.KillSession(t, db, leader()) }},
			{"KILL QUERY", func(int) { mysqltest.KillQuery(t, db, leader()) }},
			{"kill -9", func(i int) { processes[i].kill(); processes[i] = start() }},
			{"SIGSTOP", func(i int) {
				p := processes[i]
				require.NoError(t, p.command.Process.Signal(syscall.SIGSTOP))
				insert()
				seen(slices.DeleteFunc(slices.Clone(processes), func(o *listenerProcess) bool { return o == p }))
				require.NoError(t, p.command.Process.Signal(syscall.SIGCONT))
			}},
		}
		insert()
		seen(processes)
		waits := 0
		for most := mysqltest.Many(500, 1500, 500_000); waits < most; waits += len(processes) {
			if random.IntN(mysqltest.Size(25, 25, 200)) == 0 {
				fault := faults[random.IntN(len(faults))]
				fault.f(random.IntN(len(processes)))
				counts[fault.name]++
			}
			insert()
			seen(processes)
		}
		t.Log(fmt.Sprint(waits, " waits, none lost; faults: "), counts)
	})
}
