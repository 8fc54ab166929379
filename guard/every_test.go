package guard_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// Every lets one of any number of callers through in an interval.
func TestEvery(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			interval := mysqltest.Size(100*time.Millisecond, 400*time.Millisecond, 400*time.Millisecond)
			var all sync.WaitGroup
			var mu sync.Mutex
			var times []time.Time
			begun := time.Now()
			enough := func() bool {
				mu.Lock()
				defer mu.Unlock()
				return len(times) >= 4 || time.Since(begun) > patience
			}
			for n := range 8 {
				all.Go(func() {
					every := guard.Every{Key: "report", Interval: interval}
					for !enough() {
						through, err := every.Try(t.Context(), db)
						assert.NoError(t, err, n)
						if through {
							mu.Lock()
							times = append(times, time.Now())
							mu.Unlock()
						}
						<-time.After(interval / 100) // eight that never pause would keep both processors busy
					}
				})
			}
			all.Wait()
			require.GreaterOrEqual(t, len(times), 4)
			require.LessOrEqual(t, len(times), int(time.Since(begun)/interval)+1)
			require.Equal(t, len(times), mysqltest.Value[int](t, db.Pool(), "SELECT times FROM mqnotify_interval"))

			every := guard.Every{Key: "hourly", Interval: time.Hour}
			due, err := every.Due(t.Context(), db)
			require.NoError(t, err)
			require.Zero(t, due)
			through, err := every.Try(t.Context(), db)
			require.NoError(t, err)
			require.True(t, through)
			through, err = every.Try(t.Context(), db)
			require.NoError(t, err)
			require.False(t, through)
			due, err = every.Due(t.Context(), db)
			require.NoError(t, err)
			require.InDelta(t, time.Hour, due, float64(time.Minute))

			// The server's clock decides: here that of a session whose time is an hour later.
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_interval SET taken_at = taken_at - INTERVAL 1 HOUR WHERE interval_key = 'hourly'")
			through, err = every.Try(t.Context(), db)
			require.NoError(t, err)
			require.True(t, through)
		})
	})
}

// everyMain calls Try repeatedly, and prints when it got through: between which two times
// of the machine, which also runs the server.
func everyMain(ctx context.Context, db *notify.DB, t childInput) error {
	every := guard.Every{Key: t.Name, Interval: t.TTL}
	random := t.random()
	go func() {
		for {
			asked := time.Now()
			switch through, err := every.Try(ctx, db); {
			case err != nil:
				say("failed: %v", err)
			case through:
				say("through %d %d", asked.UnixNano(), time.Now().UnixNano())
			}
			<-time.After(time.Duration(random.IntN(4)) * time.Millisecond)
		}
	}()
	return eachOrder(func(string) error { return nil })
}

// Processes, some of which are killed or lose their connections, get through once in an
// interval, all of them together.
func TestEveryProcesses(t *testing.T) {
	mysqltest.NotShort(t, "TestEvery")
	rounds := mysqltest.Many(2, 3, 60)
	const racers, interval = 8, 100 * time.Millisecond
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openState(t, s)
		times := func() int {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COALESCE(SUM(times), 0) FROM mqnotify_interval")
		}

		random := mysqltest.Random(t)
		proxy := s.Proxy(t)
		dsn := halfThrough(s, proxy)
		begin := func(n int) *peer {
			return startPeer(t, childInput{Role: "every", DSN: dsn(n, config.FormatDSN()), Name: "report", TTL: interval})
		}
		var running, ended []*peer
		for n := range racers {
			running = append(running, begin(n))
		}
		for range rounds {
			want := times() + 5
			require.Eventually(t, func() bool { return times() >= want }, patience, tick, "nobody gets through")
			proxy.Down()
			proxy.Up()
			victim := random.IntN(racers)
			running[victim].kill()
			ended = append(ended, running[victim])
			running[victim] = begin(victim)
		}
		type passed struct{ asked, told int64 }
		var all []passed
		failed := 0
		for _, p := range append(ended, running...) {
			p.kill()
			for line := range p.lines {
				var at passed
				switch n, _ := fmt.Sscanf(line, "through %d %d", &at.asked, &at.told); {
				case n == 2:
					all = append(all, at)
				case strings.HasPrefix(line, "failed"):
					failed++
				}
			}
		}
		slices.SortFunc(all, func(a, b passed) int { return cmp.Compare(a.told, b.told) })
		const slack = 2 * time.Millisecond // for a machine's clock that is corrected
		for i := 1; i < len(all); i++ {
			// The process that got its answer later may have been through first.
			apart := time.Duration(max(all[i].told-all[i-1].asked, all[i-1].told-all[i].asked))
			require.GreaterOrEqual(t, apart, interval-slack, "two got through in one interval")
		}
		require.LessOrEqual(t, len(all), times(), "somebody got through of whom the server knows nothing")
		// Every cut, and every kill, may have lost the answer of one that got through.
		require.GreaterOrEqual(t, len(all), times()-failed-rounds-len(ended)-len(running), "some got through and were not told")
		t.Logf("%d intervals, %d processes told, %d of them killed with kill -9, connections of half of them cut %d times, %d tries failed",
			times(), len(all), rounds, rounds, failed)
	})
}
