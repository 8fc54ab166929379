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
	"github.com/mqnotify/mqnotify/notify"
)

func TestMain(m *testing.M) {
	flag.Parse()
	mysqltest.Parallel(mysqltest.Size(16, 8, 8))
	mysqltest.Main(m)
}

const (
	// patience is how long a test waits for what must come.
	patience = 40 * time.Second
	// tick is how often it looks.
	tick = 10 * time.Millisecond
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
	require.NoError(tb, schema.Init(tb.Context(), db.Pool(), "orders"))
}

// openProcess is the DB of another process: it keeps no idle connection, so that sessions of the test's are all that there are.
func openProcess(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db := openDB(tb, config)
	db.Pool().SetMaxIdleConns(0)
	return db
}

// holder is the session that holds a lock, 0 for none.
func holder(tb testing.TB, admin *sql.DB, lock string) uint64 {
	tb.Helper()
	return mysqltest.Value[uint64](tb, admin, "SELECT COALESCE(IS_USED_LOCK(?), 0)", lock)
}
