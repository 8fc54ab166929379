package notify_test

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// BenchmarkGTIDWake, in medians. One waiter: from the commit's return to its writer to
// the Wait's return, beside a bare round trip. Many: from the commit's beginning, since
// those who wake hold up its return, to the end of the last Wait, beside as many
// sessions that do nothing but WAIT_FOR_EXECUTED_GTID_SET.
func BenchmarkGTIDWake(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		if s.IsMariaDB() {
			b.Skip("MariaDB has nothing that waits for a commit")
		}
		own := s.Start(b, append([]string{"--max-connections=3000"}, gtidFlags...)...)
		b.Run("1", func(b *testing.B) { wakeOne(b, own) })
		b.Run("1000", func(b *testing.B) { wakeMany(b, own, 1000) })
	})
}

func wakeOne(b *testing.B, own *mysqltest.Server) {
	db := openTopic(b, own)
	admin := own.Admin(b)
	session, waiter := openGTID(b, db)
	plain := openSession(b, db, 0)
	seen, err := waiter.Head(b.Context())
	require.NoError(b, err)
	var wakes, trips []time.Duration
	for b.Loop() {
		woken := mysqltest.Result(func() time.Time {
			head, err := waiter.Wait(b.Context(), seen, time.Hour)
			seen = head
			if err != nil {
				return time.Time{}
			}
			return time.Now()
		})
		mysqltest.AwaitState(b, admin, session.ID(), gtidWaiting)
		insert(b, db)
		committed := time.Now()
		at := mysqltest.Receive(b, woken)
		require.False(b, at.IsZero())
		wakes = append(wakes, at.Sub(committed))

		begun := time.Now()
		require.Equal(b, 1, value[int](b, plain, "SELECT 1"))
		trips = append(trips, time.Since(begun))
	}
	b.ReportMetric(median(wakes), "ms/wake")
	b.ReportMetric(median(trips), "ms/roundtrip")
}

func wakeMany(b *testing.B, own *mysqltest.Server, n int) {
	db := openTopic(b, own)
	admin := own.Admin(b)
	waiters := make([]*notify.GTID, n)
	heads := make([]notify.Head, n)
	bare := make([]*sqlx.Conn, n)
	db.Pool().SetMaxIdleConns(n + 10)
	for i := range n {
		var err error
		_, waiters[i] = openGTID(b, db)
		bare[i], err = db.Pool().Connx(b.Context())
		require.NoError(b, err)
	}
	b.Cleanup(func() {
		for _, conn := range bare {
			require.NoError(b, conn.Close())
		}
	})
	round := func(wait func(ctx context.Context, i int) error) time.Duration {
		var all sync.WaitGroup
		var mu sync.Mutex
		var last time.Time
		for i := range n {
			all.Go(func() {
				if err := wait(b.Context(), i); err != nil {
					b.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				last = time.Now()
			})
		}
		require.Eventually(b, func() bool { return waitsOf(b, admin) == n }, patience, 50*time.Millisecond)
		begun := time.Now()
		insert(b, db)
		all.Wait()
		return last.Sub(begun)
	}
	var wakes, floor []time.Duration
	for b.Loop() {
		for i, waiter := range waiters {
			var err error
			heads[i], err = waiter.Head(b.Context())
			require.NoError(b, err)
		}
		wakes = append(wakes, round(func(ctx context.Context, i int) (err error) {
			_, err = waiters[i].Wait(ctx, heads[i], time.Hour)
			return err
		}))
		var gtid string
		require.NoError(b, db.Pool().GetContext(b.Context(), &gtid, "SELECT @@GLOBAL.gtid_executed"))
		floor = append(floor, round(func(ctx context.Context, i int) error {
			var ended int
			return bare[i].GetContext(ctx, &ended, "SELECT WAIT_FOR_EXECUTED_GTID_SET(?, 60)", after(b, gtid))
		}))
	}
	b.ReportMetric(median(wakes), "ms/last")
	b.ReportMetric(median(floor), "ms/last-bare")
	b.ReportMetric(median(wakes)/median(floor), "x")
}

// after is the GTID after those of a server that was never anything else.
func after(tb testing.TB, executed string) string {
	tb.Helper()
	uuid, numbers, ok := strings.Cut(executed, ":")
	require.True(tb, ok)
	_, last, ok := strings.Cut(numbers, "-")
	require.True(tb, ok)
	n, err := strconv.ParseUint(last, 10, 64)
	require.NoError(tb, err)
	return uuid + ":" + strconv.FormatUint(n+1, 10)
}

// median is in milliseconds.
func median(all []time.Duration) float64 {
	slices.Sort(all)
	return all[len(all)/2].Seconds() * 1000
}
