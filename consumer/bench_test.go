package consumer

import (
	"context"
	"database/sql"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// fill makes a backlog of n short rows, or a few more.
func fill(tb testing.TB, db *notify.DB, n int) (rows int) {
	tb.Helper()
	insert(tb, db, "orders", "a short row, as in a topic")
	for rows < n {
		_, err := db.Pool().ExecContext(tb.Context(), "INSERT INTO orders (payload) SELECT payload FROM orders LIMIT ?", n-rows)
		require.NoError(tb, err)
		require.NoError(tb, db.Pool().GetContext(tb.Context(), &rows, "SELECT COUNT(*) FROM orders"))
	}
	return rows
}

// BenchmarkBacklog tails 1,000,000 rows with a handler for each row, and compares it with
// its floor: a bare loop of SELECT ... LIMIT 1000 through database/sql, of the same
// columns. Rounds take turns; it reports the medians and their ratio.
//
//	go test ./consumer -run - -bench Backlog -benchtime 5x
func BenchmarkBacklog(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := openTopic(b, s)
		n := fill(b, db, 1_000_000)
		var floors, ours, inTx []float64
		for b.Loop() {
			start := time.Now()
			require.Equal(b, n, bareLoop(b, db))
			floors = append(floors, float64(n)/time.Since(start).Seconds())
			start = time.Now()
			require.Equal(b, n, tailAll(b, db, Options{From: "beginning", StopAtEnd: true}))
			ours = append(ours, float64(n)/time.Since(start).Seconds())
			start = time.Now()
			require.Equal(b, n, tailAll(b, db, Options{From: "beginning", StopAtEnd: true, Group: "g", Reset: true}))
			inTx = append(inTx, float64(n)/time.Since(start).Seconds())
		}
		floor, our, group := median(floors), median(ours), median(inTx)
		b.ReportMetric(floor, "floor-rows/s")
		b.ReportMetric(our, "rows/s")
		b.ReportMetric(our/floor, "ratio")
		b.ReportMetric(group, "group-rows/s")
		b.ReportMetric(group/floor, "group-ratio")
	})
}

// BenchmarkShare measures how fast the members of a group, all in
// one process, read a backlog of 100,000 messages of 1 KiB with a handler that does nothing. It shows the cost of every member
// reading all ids, compared with a group that is not shared.
//
//	go test ./consumer -run - -bench Share -benchtime 5x
func BenchmarkShare(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := openTopic(b, s)
		do(b, db, "INSERT INTO orders (headers, payload) VALUES ('{\"key\": \"0\"}', REPEAT('x', 1024))")
		n := 0
		for n < 100_000 {
			do(b, db, "INSERT INTO orders (headers, payload) SELECT JSON_OBJECT('key', CONCAT(id % 997)), payload FROM orders")
			n = mysqltest.Value[int](b, db.Pool(), "SELECT COUNT(*) FROM orders")
		}
		rates := make(map[int][]float64)
		read := func(members int) {
			options := Options{Group: fmt.Sprint(members), From: "beginning", Logger: quiet, MembersShare: members > 0}
			do(b, db, "DELETE FROM mqnotify_offset", "DELETE FROM mqnotify_partition")
			var handled atomic.Int64
			all := make(chan struct{})
			handler := Each(func(context.Context, Message) error {
				if handled.Add(1) == int64(n) {
					close(all)
				}
				return nil
			})
			start := time.Now()
			var started []*running
			for range max(1, members) {
				started = append(started, run(b, db, "orders", options, handler))
			}
			<-all
			rates[members] = append(rates[members], float64(n)/time.Since(start).Seconds())
			for _, r := range started {
				require.NoError(b, r.end(b))
			}
		}
		for b.Loop() {
			for _, members := range []int{0, 1, 2, 4} {
				read(members)
			}
		}
		b.ReportMetric(median(rates[0]), "unshared-rows/s")
		for _, members := range []int{1, 2, 4} {
			b.ReportMetric(median(rates[members]), fmt.Sprintf("%d-rows/s", members))
		}
	})
}

func median(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func bareLoop(tb testing.TB, db *notify.DB) (n int) {
	tb.Helper()
	conn, err := db.Pool().Conn(tb.Context())
	require.NoError(tb, err)
	defer conn.Close()
	barePage := func(last uint64) (uint64, int) {
		rows, err := conn.QueryContext(tb.Context(), "SELECT id, created_at, headers, payload FROM orders WHERE id > ? ORDER BY id LIMIT 1000", last)
		require.NoError(tb, err)
		defer rows.Close()
		var created, headers, payload sql.RawBytes
		page := 0
		for rows.Next() {
			require.NoError(tb, rows.Scan(&last, &created, &headers, &payload))
			page++
		}
		require.NoError(tb, rows.Err())
		return last, page
	}
	for last, page := uint64(0), 1000; page == 1000; n += page {
		last, page = barePage(last)
	}
	return n
}

func tailAll(tb testing.TB, db *notify.DB, options Options) (n int) {
	tb.Helper()
	c, err := New(db, "orders", options)
	require.NoError(tb, err)
	var last uint64
	require.NoError(tb, c.Run(tb.Context(), Each(func(_ context.Context, m Message) error {
		if m.ID > last {
			n++
		}
		last = m.ID
		return nil
	})))
	return n
}

// However large the backlog is, the reader holds only a few pages in memory.
func TestBacklogMemory(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		n := fill(t, db, mysqltest.Many(30_000, 60_000, 300_000))
		_, err := db.Pool().ExecContext(t.Context(), "UPDATE orders SET payload = REPEAT('x', 20000) WHERE id % 1500 < 20")
		require.NoError(t, err)
		var peak atomic.Uint64
		runtime.GC()
		var before runtime.MemStats
		runtime.ReadMemStats(&before)
		c, err := New(db, "orders", Options{From: "beginning", StopAtEnd: true})
		require.NoError(t, err)
		seen := 0
		require.NoError(t, c.Run(t.Context(), Each(func(context.Context, Message) error {
			if seen++; seen%1000 == 0 {
				var now runtime.MemStats
				runtime.ReadMemStats(&now)
				peak.Store(max(peak.Load(), now.HeapInuse))
			}
			return nil
		})))
		require.Equal(t, n, seen)
		grown := int64(peak.Load()) - int64(before.HeapInuse)
		t.Logf("%d rows: the heap grew by %.1f MiB at most", n, float64(grown)/(1<<20))
		require.Less(t, grown, int64(mysqltest.Many(8, 12, 64)<<20), "all of them would be twice that")
	})
}
