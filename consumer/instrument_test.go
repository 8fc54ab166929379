package consumer

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// MySQL does not show metadata locks that were taken while the instrument was off. The rows of such writers are delivered
// anyway: a consumer whose own lock is not shown uses another way, and it also reads the transactions that were open when
// it began from INNODB_TRX.
func TestInstrumentOff(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MySQL's metadata locks alone are used")
		}
		own := s.Start(t)
		admin := own.Admin(t)
		instrument := func(enabled string) {
			mysqltest.Exec(t, admin, "UPDATE performance_schema.setup_instruments SET ENABLED = ? WHERE NAME = 'wait/lock/metadata/sql/mdl'", enabled)
		}
		for _, begins := range []string{"a consumer that runs", "a consumer that begins"} {
			t.Run(begins, func(t *testing.T) {
				config := own.Database(t)
				db := openConfig(t, config, "orders")
				reader := openUser(t, own.User(t, config, "SELECT ON "+config.DBName+".*", "PROCESS ON *.*",
					"SELECT ON performance_schema.metadata_locks", "SELECT ON performance_schema.threads"))
				var got collected
				writer := newConn(t, db)
				write := func() { onConn(t, writer, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')") }
				if begins == "a consumer that begins" {
					instrument("NO")
					write()
					instrument("YES")
					run(t, reader, "orders", Options{From: "beginning"}, got.handler())
				} else {
					run(t, reader, "orders", Options{From: "beginning"}, got.handler())
					insert(t, db, "orders", "before")
					got.waitFor(t, "before")
					instrument("NO")
					write()
				}
				insert(t, db, "orders", "first")
				before := []string{"first"}
				if begins == "a consumer that runs" {
					before = []string{"before", "first"}
				}
				got.waitFor(t, before...)
				mysqltest.Window(t, time.Second) // a gap without a writer is settled by then
				onConn(t, writer, "COMMIT")
				got.waitFor(t, append(before, "late")...)
				instrument("YES")
			})
		}
	})
}

// Without the performance schema the consumer uses another way.
func TestWithoutPerformanceSchema(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MariaDB's is off in most tests")
		}
		own := s.Start(t, "--performance-schema=OFF")
		c, err := New(openConfig(t, own.Database(t), "orders"), "orders", Options{})
		require.NoError(t, err)
		way, _, err := c.Writers(t.Context())
		require.NoError(t, err)
		require.Equal(t, writersInnoDBTrx, way)
	})
}

// A consumer whose account sees no transactions logs once what that costs.
func TestWarnsAboutUnknownWriters(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		insert(t, db, "orders", "one")
		for _, warned := range []bool{true, false} {
			grants := []string{"SELECT ON " + config.DBName + ".*"}
			if !warned {
				grants = append(grants, "PROCESS ON *.*")
			}
			var log mysqltest.Text
			var got collected
			c := run(t, openUser(t, s.User(t, config, grants...)), "orders", Options{From: "beginning", Logger: slog.New(slog.NewTextHandler(&log, nil))}, got.handler())
			got.waitFor(t, "one")
			require.NoError(t, c.end(t))
			require.Equal(t, warned, strings.Contains(log.String(), "this account can't see open transactions"), log.String())
		}
	})
}

func openUser(t *testing.T, config *mysql.Config) *notify.DB {
	t.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
