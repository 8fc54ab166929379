package notify_test

import (
	"database/sql"
	"flag"

	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/notify"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.FlagTable, schema.NotificationTable}

func TestMain(m *testing.M) {
	flag.Parse()
	mysqltest.Parallel(mysqltest.Size(16, 8, 8))
	mysqltest.Main(m)
}

const (
	// patience is how long a test waits for an event.
	patience = 40 * time.Second
	// tick is how often it checks.
	tick = 25 * time.Millisecond
)

func openDB(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

func makeTopic(tb testing.TB, db *notify.DB) {
	tb.Helper()
	schematest.Init(tb, db.Pool(), stateTables, "orders")
}

// openProcess returns the DB of another process. It keeps no idle connection, so that the test's sessions are the only ones.
func openProcess(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db := openDB(tb, config)
	db.Pool().SetMaxIdleConns(0)
	return db
}

// holder returns the session that holds a lock, or 0 if none does.
func holder(tb testing.TB, admin *sql.DB, lock string) uint64 {
	tb.Helper()
	return mysqltest.Value[uint64](tb, admin, "SELECT COALESCE(IS_USED_LOCK(?), 0)", lock)
}
