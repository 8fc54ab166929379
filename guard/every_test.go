package guard_test

import (
	"context"
	"errors"
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

// Every lets one through an interval, of any number that ask.
func TestEvery(t *testing.T) {
	eachAtOnce(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			const interval = 400 * time.Millisecond
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
					every, err := guard.NewEvery(db, "report", interval)
					if !assert.NoError(t, err) {
						return
					}
					for !enough() {
						through, err := every.Try(t.Context())
						assert.NoError(t, err, n)
						if through {
							mu.Lock()
							times = append(times, time.Now())
							mu.Unlock()
						}
					}
				})
			}
			all.Wait()
			require.GreaterOrEqual(t, len(times), 4)
			require.LessOrEqual(t, len(times), int(time.Since(begun)/interval)+1)
			require.Equal(t, len(times), value[int](t, db, "SELECT times FROM mqnotify_interval"))

			every, err := guard.NewEvery(db, "hourly", time.Hour)
			require.NoError(t, err)
			due, err := every.Due(t.Context())
			require.NoError(t, err)
			require.Zero(t, due)
			ran, err := every.Do(t.Context(), func(context.Context) error { return nil })
			require.NoError(t, err)
			require.True(t, ran)
			ran, err = every.Do(t.Context(), func(context.Context) error { return errors.New("not run") })
			require.NoError(t, err)
			require.False(t, ran)
			due, err = every.Due(t.Context())
			require.NoError(t, err)
			require.InDelta(t, time.Hour, due, float64(time.Minute))

			// The server's clock decides: that of a session that is an hour later.
			execute(t, db, "UPDATE mqnotify_interval SET taken_at = taken_at - INTERVAL 1 HOUR WHERE interval_key = 'hourly'")
			ran, err = every.Do(t.Context(), func(context.Context) error { return nil })
			require.NoError(t, err)
			require.True(t, ran)
		})
	})
}
