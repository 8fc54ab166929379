package capture

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The columns of a typical table of a shop: 12 columns, about 250 bytes a row.
const shopColumns = `(id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, status ENUM('new','paid','sent') NOT NULL,
	total DECIMAL(10,2) NOT NULL, weight DOUBLE, note TEXT, email VARCHAR(100), address VARCHAR(200), options JSON, token BINARY(16),
	created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), paid_at DATETIME, KEY (customer)) CHARACTER SET utf8mb4`

const shopRow = `(NULL, 17, 'new', 99.95, 1.25, 'leave it with the neighbour on the left', 'somebody@example.com',
	'17 Some Street, 12345 Some Town', '{"gift": true, "colours": ["red", "green"]}', UNHEX('00112233445566778899AABBCCDDEEFF'), DEFAULT, NULL)`

// BenchmarkCapture measures what a capture costs the writer: medians of the same statements, each committed alone, on a table
// without and on one with a capture.
func BenchmarkCapture(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		for _, bench := range []struct {
			name      string
			statement func(table string, i int) string
		}{
			{"insert", func(table string, _ int) string { return "INSERT INTO " + table + " VALUES " + shopRow }},
			{"insert-100", func(table string, _ int) string {
				return "INSERT INTO " + table + " VALUES " + strings.Repeat(shopRow+",", 99) + shopRow
			}},
			{"update", func(table string, i int) string {
				return fmt.Sprintf("UPDATE %s SET status = 'paid', total = %d WHERE id = 50", table, i%1000)
			}},
			{"update-nothing", func(table string, _ int) string {
				return "UPDATE " + table + " SET paid_at = paid_at WHERE id = 51"
			}},
		} {
			b.Run(bench.name, func(b *testing.B) {
				db := open(b, s.Database(b))
				tables := []string{"bare", "captured"}
				for _, table := range tables {
					mysqltest.ExecAll(b, db.Pool(), "CREATE TABLE "+ident.Quote(table)+" "+shopColumns,
						"INSERT INTO "+ident.Quote(table)+" VALUES "+strings.Repeat(shopRow+",", 99)+shopRow)
				}
				_, err := Install(b.Context(), db, "captured", Options{})
				require.NoError(b, err)
				conn, err := db.Pool().Connx(b.Context())
				require.NoError(b, err)
				defer conn.Close()
				var took [2][]time.Duration
				for i := 0; b.Loop(); i++ {
					for t, table := range tables {
						began := time.Now()
						_, err := conn.ExecContext(b.Context(), bench.statement(table, i))
						require.NoError(b, err)
						took[t] = append(took[t], time.Since(began))
					}
				}
				median := func(t int) float64 {
					slices.Sort(took[t])
					return float64(took[t][len(took[t])/2].Nanoseconds()) / 1000
				}
				bare, captured := median(0), median(1)
				b.ReportMetric(bare, "bare-µs/op")
				b.ReportMetric(captured, "captured-µs/op")
				b.ReportMetric(captured-bare, "cost-µs/op")
				b.ReportMetric(0, "ns/op") // both together: no figure
			})
		}
	})
}

// BenchmarkSnapshot measures what a snapshot costs the writers, for chunks of different sizes: the times of updates of random rows, and
// of one of the rows that the snapshot locks next, while one snapshot of 20,000 rows follows another.
func BenchmarkSnapshot(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := withState(b, s)
		mysqltest.Exec(b, db.Pool(), "CREATE TABLE shop "+shopColumns)
		for range 20 {
			mysqltest.Exec(b, db.Pool(), "INSERT INTO shop VALUES "+strings.Repeat(shopRow+",", 999)+shopRow)
		}
		_, err := Install(b.Context(), db, "shop", Options{})
		require.NoError(b, err)
		mysqltest.Exec(b, db.Pool(), "ANALYZE TABLE shop")
		conn, err := db.Pool().Connx(b.Context())
		require.NoError(b, err)
		defer conn.Close()
		for _, most := range []int{0, 100, 500, 2000} {
			b.Run(fmt.Sprint("chunks-of-", most), func(b *testing.B) {
				ctx, stop := context.WithCancel(b.Context())
				var rows, ahead atomic.Uint64
				began, ended := time.Now(), make(chan struct{})
				go func() {
					defer close(ended)
					for most > 0 && ctx.Err() == nil {
						snapshot := &snapshot{db: db, table: "shop", options: SnapshotOptions{Patience: time.Minute, Logger: quiet, Report: func(p Progress) {
							ahead.Store(p.Rows)
						}}}
						_ = snapshot.survey(ctx)
						snapshot.most = most
						p, _ := snapshot.run(ctx)
						rows.Add(p.Rows)
						snapshot.close()
					}
				}()
				var took [2][]time.Duration
				random := mysqltest.Random(b)
				for i := 0; b.Loop(); i++ {
					id := 1 + random.IntN(20_000)
					if i%2 == 1 {
						id = 1 + (int(ahead.Load())+most/2)%20_000
					}
					began := time.Now()
					_, err := conn.ExecContext(b.Context(), fmt.Sprintf("UPDATE shop SET total = %d WHERE id = %d", i%1000, id))
					require.NoError(b, err)
					took[i%2] = append(took[i%2], time.Since(began))
				}
				elapsed := time.Since(began)
				stop()
				<-ended
				for i, name := range []string{"random", "next"} {
					slices.Sort(took[i])
					for _, part := range []struct {
						name  string
						share float64
					}{{"median", 0.5}, {"p99", 0.99}, {"max", 1}} {
						at := min(len(took[i])-1, int(part.share*float64(len(took[i]))))
						b.ReportMetric(float64(took[i][at].Microseconds()), name+"-"+part.name+"-µs")
					}
				}
				b.ReportMetric(float64(rows.Load())/elapsed.Seconds(), "snapshot-rows/s")
				b.ReportMetric(0, "ns/op")
			})
		}
	})
}
