package guard_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// median measures f and its floor in turns.
func median(b *testing.B, f, floor func(n int)) {
	b.Helper()
	var times, floors []time.Duration
	measure := func(all *[]time.Duration, f func(n int), n int) {
		begun := time.Now()
		f(n)
		*all = append(*all, time.Since(begun))
	}
	for n := range b.N {
		measure(&times, f, n)
		measure(&floors, floor, n)
	}
	slices.Sort(times)
	slices.Sort(floors)
	took, least := times[len(times)/2], floors[len(floors)/2]
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took.Microseconds()), "µs")
	b.ReportMetric(float64(least.Microseconds()), "floor-µs")
	b.ReportMetric(float64(took)/float64(least), "floors")
}

// The cost of guards without contention, compared with a bare UPDATE of one row over the
// same pool, because every guard runs at least one such statement.
func BenchmarkGuards(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db, _ := openState(b, s)
		ctx := b.Context()
		mysqltest.Exec(b, db.Pool(), "CREATE TABLE bare (id INT PRIMARY KEY, n BIGINT NOT NULL)")
		mysqltest.Exec(b, db.Pool(), "INSERT INTO bare VALUES (1, 0)")
		floor := func(int) { mysqltest.Exec(b, db.Pool(), "UPDATE bare SET n = n + 1 WHERE id = 1") }
		run := 0
		must := func(through bool, err error) {
			require.NoError(b, err)
			require.True(b, through)
		}
		b.Run("once", func(b *testing.B) {
			mysqltest.Exec(b, db.Pool(), "DELETE FROM mqnotify_once")
			mysqltest.Exec(b, db.Pool(), "CREATE TABLE IF NOT EXISTS `ma``ils` (id BIGINT UNSIGNED PRIMARY KEY, `sent at` DATETIME(6), body TEXT, mark CHAR(26))")
			mysqltest.Exec(b, db.Pool(), "DELETE FROM `ma``ils`")
			for n := range b.N {
				mysqltest.Exec(b, db.Pool(), "INSERT INTO `ma``ils` (id) VALUES (?)", n)
			}
			once := onceInMails(b, db, "")
			median(b, func(n int) { must(once.Try(ctx, n)) }, floor)
		})
		b.Run("claim", func(b *testing.B) {
			run++
			claims := guard.NewClaims(db)
			median(b, func(n int) { must(claims.Claim(ctx, fmt.Sprintf("%d %d", run, n))) }, floor)
		})
		b.Run("every", func(b *testing.B) {
			run++
			median(b, func(n int) {
				must(guard.Every{Key: strconv.Itoa(run*1_000_000 + n), Interval: time.Hour}.Try(ctx, db))
			}, floor)
		})
		for _, kind := range []string{"advisory", "row", "flag", "lease"} {
			b.Run(kind, func(b *testing.B) { // taken and released, which is two statements at least
				m, err := mutexes[kind](db, "x")
				require.NoError(b, err)
				median(b, func(int) {
					held, err := m.TryLock(ctx)
					require.NoError(b, err)
					require.NoError(b, held.Release(ctx))
				}, func(n int) { floor(n); floor(n) })
			})
		}
	})
}
