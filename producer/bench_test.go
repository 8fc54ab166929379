package producer

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// The floor of a publish is the prepared text of its INSERT, sent through database/sql
// with the same driver settings. Floor and publish alternate, so that other load
// of the machine affects both. The figures are medians of the rounds.
//
// The durability of the test servers applies to both: the log is written at every commit
// and flushed once a second (innodb_flush_log_at_trx_commit=2).

func BenchmarkPublishBatchesOf1000(b *testing.B) { compare(b, 1000, 20) }

func BenchmarkPublishOneByOne(b *testing.B) { compare(b, 1, 200) }

func compare(b *testing.B, batch, times int) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := open(b, s.Database(b))
		require.NoError(b, schema.Init(b.Context(), db.Pool(), "floor", "ours"))
		p := newProducer(b, db, "ours", Options{})
		messages := make([]Message, batch)
		args := make([]any, 0, 2*batch)
		for i := range messages {
			messages[i].Payload = []byte(strings.Repeat("short row ", 10))
			args = append(args, nil, messages[i].Payload)
		}
		query := "INSERT INTO floor (headers, payload) VALUES (?,?)" + strings.Repeat(",(?,?)", batch-1)
		ctx, cancel := context.WithCancel(b.Context())
		defer cancel()

		round := func(publish func() error) time.Duration {
			begun := time.Now()
			for range times {
				require.NoError(b, publish())
			}
			return time.Since(begun)
		}
		floor := func() error { _, err := db.Pool().ExecContext(ctx, query, args...); return err }
		ours := func() error { _, err := p.Publish(ctx, messages...); return err }
		round(floor) // connections, and the driver's buffers
		round(ours)
		var floors, publishes []time.Duration
		for b.Loop() {
			floors = append(floors, round(floor))
			publishes = append(publishes, round(ours))
		}
		rate := func(rounds []time.Duration) float64 {
			slices.Sort(rounds)
			return float64(batch*times) / rounds[len(rounds)/2].Seconds()
		}
		b.ReportMetric(0, "ns/op")
		b.ReportMetric(rate(floors), "floor-rows/s")
		b.ReportMetric(rate(publishes), "rows/s")
		b.ReportMetric(100*rate(publishes)/rate(floors), "%-of-floor")
	})
}
