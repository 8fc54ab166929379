package capture

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// columns of a table such as shops have: 12 of them, some 250 bytes a row.
const shopColumns = `(id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, customer INT NOT NULL, status ENUM('new','paid','sent') NOT NULL,
	total DECIMAL(10,2) NOT NULL, weight DOUBLE, note TEXT, email VARCHAR(100), address VARCHAR(200), options JSON, token BINARY(16),
	created_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6), paid_at DATETIME, KEY (customer)) CHARACTER SET utf8mb4`

const shopRow = `(NULL, 17, 'new', 99.95, 1.25, 'leave it with the neighbour on the left', 'somebody@example.com',
	'17 Some Street, 12345 Some Town', '{"gift": true, "colours": ["red", "green"]}', UNHEX('00112233445566778899AABBCCDDEEFF'), DEFAULT, NULL)`

// BenchmarkCapture is what a capture costs the writer: the same statements, one after the
// other, on a table without and on one with it, each committed by itself. Medians.
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
