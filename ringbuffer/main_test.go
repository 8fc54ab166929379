package ringbuffer

import (
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/notify"
)

// patience is how long a test waits for an event.
const patience = 40 * time.Second

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.RingTable, schema.RingSlotTable}

func TestMain(m *testing.M) {
	mysqltest.AsProcess(processEnv, writeMain)
	mysqltest.Main(m)
}

func openConfig(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// database returns a database of the test with the tables, and the buffer "log" of size entries.
func database(tb testing.TB, s *mysqltest.Server, size int) (*notify.DB, *mysql.Config) {
	tb.Helper()
	config := s.Database(tb)
	db := openConfig(tb, config)
	schematest.Init(tb, db.Pool(), stateTables)
	require.NoError(tb, Create(tb.Context(), db, "log", size))
	return db, config
}

func open(tb testing.TB, db *notify.DB) *Buffer {
	tb.Helper()
	b, err := Open(db, "log")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, b.Close()) })
	return b
}
