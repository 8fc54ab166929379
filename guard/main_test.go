package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/notify"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.OnceTable, schema.ClaimTable, schema.IntervalTable, schema.RowMutexTable, schema.FlagMutexTable, schema.LeaseTable}

func TestMain(m *testing.M) {
	mysqltest.AsProcess(peerEnv, peerMain)
	mysqltest.Parallel(8)
	guard.SetUndoing(10 * time.Second) // a loaded machine needs seconds for what is quick elsewhere
	mysqltest.Main(m)
}

const (
	// patience is how long a test waits for an event.
	patience = time.Minute
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

// openState returns a database of the test with the tables of guards.
func openState(tb testing.TB, s *mysqltest.Server) (*notify.DB, *mysql.Config) {
	tb.Helper()
	config := s.Database(tb)
	db := openDB(tb, config)
	schematest.Init(tb, db.Pool(), stateTables)
	return db, config
}

// bothCounts runs f with a connection that counts changed rows, and with one that counts
// found ones.
func bothCounts(t *testing.T, s *mysqltest.Server, f func(t *testing.T, db *notify.DB, config *mysql.Config)) {
	t.Helper()
	for _, found := range mysqltest.Size([]bool{true}, []bool{false, true}, []bool{false, true}) { // most other tests have false
		t.Run(fmt.Sprintf("clientFoundRows=%v", found), func(t *testing.T) {
			config := s.Database(t)
			config.ClientFoundRows = found
			db := openDB(t, config)
			schematest.Init(t, db.Pool(), stateTables)
			f(t, db, config)
		})
	}
}

// shortly returns a context that ends soon.
func shortly(tb testing.TB, d time.Duration) context.Context {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), d)
	tb.Cleanup(cancel)
	return ctx
}

func mustLock(tb testing.TB, m *guard.Mutex) guard.Held {
	tb.Helper()
	held, err := m.Lock(shortly(tb, patience))
	require.NoError(tb, err)
	return held
}

func newLease(tb testing.TB, db *notify.DB, name string, ttl time.Duration) *guard.Mutex {
	tb.Helper()
	lease, err := guard.NewMutex(db, name, guard.MutexOptions{Kind: "lease", TTL: ttl})
	require.NoError(tb, err)
	return lease
}

// readyOnce returns a Once on the table of `mqnotify init`.
func readyOnce(db *notify.DB) *guard.Once {
	once, err := guard.NewOnce(db, guard.OnceTable{})
	if err != nil {
		panic(err)
	}
	return once
}

// lost returns a channel that is closed when the lock is lost.
func lost(tb testing.TB, held guard.Held) <-chan struct{} {
	tb.Helper()
	holding, stop := held.Context(context.Background())
	tb.Cleanup(stop)
	return holding.Done()
}

// leaseStatus is a lease's row.
type leaseStatus struct {
	Held  bool
	Token uint64        // of the last holder; 0 if it was never taken
	For   time.Duration // since it was taken, if it is held
	Left  time.Duration // until it expires, if it is held
}

func stateOf(tb testing.TB, db *notify.DB, name string) (s leaseStatus) {
	tb.Helper()
	var age, left int64
	err := db.Pool().QueryRowxContext(tb.Context(), "SELECT token, COALESCE(expires_at > UTC_TIMESTAMP(6), FALSE),"+
		" TIMESTAMPDIFF(MICROSECOND, taken_at, UTC_TIMESTAMP(6)), COALESCE(TIMESTAMPDIFF(MICROSECOND, UTC_TIMESTAMP(6), expires_at), 0) FROM "+
		schema.LeaseTable+" WHERE name = ?", name).Scan(&s.Token, &s.Held, &age, &left)
	if errors.Is(err, sql.ErrNoRows) {
		return leaseStatus{}
	}
	require.NoError(tb, err)
	if s.Held { // it may have been taken after the time that the statement began with
		s.For, s.Left = max(0, time.Duration(age)*time.Microsecond), time.Duration(left)*time.Microsecond
	}
	return s
}
