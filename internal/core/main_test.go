package core_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"database/sql"
	"encoding/pem"
	"flag"
	"math/big"
	"os"
	"path/filepath"

	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.FlagTable}

func TestMain(m *testing.M) {
	mysqltest.AsProcess(processEnv, processMain)
	flag.Parse()
	mysqltest.Parallel(mysqltest.Size(16, 8, 8))
	mysqltest.Main(m)
}

const (
	// patience is how long a test waits for an event.
	patience = 40 * time.Second
	// tick is how often it checks.
	tick = 25 * time.Millisecond
	// never is an IdleTimeout without a touch during a test: only reading the idle connection can notice
	// its end.
	never = 8 * time.Hour
)

// short is an IdleTimeout that passes soon: touched every 4.4 s, trusted for 9 s, so that
// a stall of 3 s loses nothing, also between two slices of a wait.
var short = 11 * time.Second

func openDB(tb testing.TB, config *mysql.Config) *core.DB {
	tb.Helper()
	db, err := core.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// openTopic returns a database of the test with a message table "orders".
func openTopic(tb testing.TB, s *mysqltest.Server) *core.DB {
	tb.Helper()
	db := openDB(tb, s.Database(tb))
	makeTopic(tb, db)
	return db
}

func makeTopic(tb testing.TB, db *core.DB) {
	tb.Helper()
	schematest.Init(tb, db.Pool(), stateTables, "orders")
}

func insert(tb testing.TB, db *core.DB) {
	tb.Helper()
	mysqltest.Exec(tb, db.Pool(), "INSERT INTO orders (payload) VALUES ('x')")
}

func openSession(tb testing.TB, db *core.DB, idle time.Duration) *core.Session {
	tb.Helper()
	session, err := core.NewSession(tb.Context(), db, core.SessionOptions{IdleTimeout: idle})
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, session.Close()) })
	return session
}

// lockName returns a name of the test.
func lockName(db *core.DB, parts ...string) string {
	return core.LockName(append([]string{"test", db.Name()}, parts...)...)
}

func mustLock(tb testing.TB, session *core.Session, name string) *core.Lock {
	tb.Helper()
	lock, err := session.Lock(tb.Context(), name, patience)
	require.NoError(tb, err)
	return lock
}

func requireHeld(tb testing.TB, lock *core.Lock, want bool) {
	tb.Helper()
	held, err := lock.Held(tb.Context())
	require.NoError(tb, err)
	require.Equal(tb, want, held)
}

// value reads a value over the session.
func value[T any](tb testing.TB, session *core.Session, query string, args ...any) (v T) {
	tb.Helper()
	require.NoError(tb, session.Do(tb.Context(), func(conn *sqlx.Conn) error {
		return conn.QueryRowxContext(tb.Context(), query, args...).Scan(&v)
	}))
	return v
}

const waiting = mysqltest.WaitsForLock

func kill(tb testing.TB, admin *sql.DB, what string, id uint64) {
	tb.Helper()
	require.True(tb, killIfThere(tb, admin, what, id), "session %d is gone", id)
}

// killIfThere kills a session, or its statement ("QUERY"), and reports whether the session existed.
func killIfThere(tb testing.TB, admin *sql.DB, what string, id uint64) bool {
	tb.Helper()
	if what == "QUERY" {
		return mysqltest.KillQuery(tb, admin, id)
	}
	return mysqltest.KillSession(tb, admin, id)
}

// serverTime waits until the server has lived on for d.
func serverTime(tb testing.TB, admin *sql.DB, d time.Duration) {
	tb.Helper()
	now := func() (seconds float64) {
		require.NoError(tb, admin.QueryRowContext(tb.Context(), "SELECT UNIX_TIMESTAMP(SYSDATE(6))").Scan(&seconds))
		return seconds
	}
	end := now() + d.Seconds()
	require.Eventually(tb, func() bool { return now() >= end }, d+patience, 50*time.Millisecond)
}

// certificate creates a key and a certificate for a server, and returns the server's flags for it.
func certificate(tb testing.TB) []string {
	tb.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(tb, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(tb, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(tb, err)
	write := func(name, kind string, bytes []byte) string {
		path := filepath.Join(tb.TempDir(), name)
		require.NoError(tb, os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: bytes}), 0o600))
		return path
	}
	return []string{
		"--ssl-cert=" + write("cert.pem", "CERTIFICATE", cert),
		"--ssl-key=" + write("key.pem", "PRIVATE KEY", der),
	}
}

// openProcess returns the DB of another process. It keeps no idle connection, so that the test's sessions are the only ones.
func openProcess(tb testing.TB, config *mysql.Config) *core.DB {
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
