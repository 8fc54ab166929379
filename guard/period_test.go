package guard_test

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// An Every with a Period lets one caller through in each period, however much of the period is left, by the server's clock.
func TestEveryPeriod(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			// In a zone whose day has just begun or is about to end, the test would sometimes fail: noon is far from both.
			now := mysqltest.Value[int](t, db.Pool(), "SELECT TIME_TO_SEC(UTC_TIME())")
			zone := time.FixedZone("noon", 12*60*60-now)
			for _, period := range []string{"hour", "day", "week", "month"} {
				if period == "hour" {
					zone = time.FixedZone("half past", 12*60*60+30*60-now)
				}
				every := guard.Every{Key: period, Period: period, Zone: zone}
				due, err := every.Due(t.Context(), db)
				require.NoError(t, err)
				require.Zero(t, due)
				try := func() bool {
					through, err := every.Try(t.Context(), db)
					require.NoError(t, err)
					return through
				}
				require.True(t, try(), period)
				require.False(t, try(), period)
				due, err = every.Due(t.Context(), db)
				require.NoError(t, err)
				require.Positive(t, due)
				before := map[string]string{"hour": "1 HOUR", "day": "13 HOUR", "week": "7 DAY", "month": "31 DAY"}[period]
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_interval SET taken_at = taken_at - INTERVAL "+before+" WHERE interval_key = ?", period)
				due, err = every.Due(t.Context(), db)
				require.NoError(t, err)
				require.Zero(t, due)
				require.True(t, try(), period)
				require.False(t, try(), period)
			}
		})
	})
}
