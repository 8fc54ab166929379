package core_test

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

// However many statements run at the same time, a DB opens no more connections than its default limit.
func TestPoolIsBounded(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, err := core.OpenConfig(s.Database(t))
		require.NoError(t, err)
		defer db.Close()
		var running sync.WaitGroup
		for range 200 {
			running.Go(func() {
				var n int
				assert.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT SLEEP(0.05)"))
			})
		}
		mysqltest.Eventually(t, "a statement waits for a connection", func() bool { return db.Pool().Stats().WaitCount > 0 })
		running.Wait()
		assert.Equal(t, 50, db.Pool().Stats().MaxOpenConnections)
	})
}

func TestOpenRefusals(t *testing.T) {
	for _, dsn := range []string{
		"root:geheim@tcp(127.0.0.1:3306)/", "root:geheim@/", "mysql://root:geheim@127.0.0.1/", "mariadb://root:geheim@127.0.0.1",
	} {
		_, err := core.Open(dsn)
		require.ErrorIs(t, err, core.ErrOptions, dsn)
		assert.NotContains(t, err.Error(), "geheim")
	}
	for _, dsn := range []string{
		"", "root:geheim@tcp(127.0.0.1:3306", "root:geheim@tcp(127.0.0.1:3306)shop", "root:geheim@/shop?tls=nonsense",
		"root:geheim@/shop?timeout=geheim", "mysql://root:geheim@127.0.0.1:port/shop", "mysql://root:geh%eim@h/shop",
		"postgres://root:geheim@127.0.0.1/shop", "root:geheim",
	} {
		_, err := core.Open(dsn)
		require.Error(t, err, dsn)
		assert.NotContains(t, err.Error(), "geh", dsn)
	}
	_, err := core.OpenConfig(mysql.NewConfig())
	require.ErrorIs(t, err, core.ErrOptions)
	config := mysql.NewConfig()
	config.DBName, config.Passwd, config.Net = "shop", "geheim", "nonsense"
	config.Params = map[string]string{}
	_, err = core.OpenConfig(config)
	require.ErrorContains(t, err, "notify: ")
	assert.NotContains(t, err.Error(), "geheim")
	assert.Empty(t, config.Params, "the caller's map")
}

func TestOpen(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.MultiStatements = true
		config.MaxAllowedPacket = 1 << 20
		db, err := core.Open(config.FormatDSN())
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		assert.Equal(t, config.DBName, db.Name())
		assert.Equal(t, 1<<20, core.MaxAllowedPacket(db))
		var name string
		require.NoError(t, db.Pool().Get(&name, "SELECT DATABASE() WHERE 1 = ?", 1))
		assert.Equal(t, config.DBName, name)
		_, err = db.Pool().Exec("DO 1; DO 2")
		require.Error(t, err, "a pool for user's values takes one statement at a time")
		caps, err := server.Discover(t.Context(), db.Pool())
		require.NoError(t, err)
		assert.Equal(t, s.IsMariaDB(), caps.MariaDB)

		// OpenConfig copies the caller's configuration, and sessions outlive the pool.
		config.DBName = "another"
		session := openSession(t, db, 0)
		require.NoError(t, db.Close())
		assert.Equal(t, db.Name(), value[string](t, session, "SELECT DATABASE()"))
		_, err = server.Discover(t.Context(), db.Pool())
		require.Error(t, err)
	})
}

// A logger of the user is kept; the driver's own, which prints on stderr, is replaced.
func TestOpenConfigKeepsTheLogger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		logged := new(lines)
		config.Logger = logged
		db := openDB(t, config)
		require.NoError(t, db.Pool().Ping())
		own.Kill()
		require.Eventually(t, func() bool { return db.Pool().Ping() != nil }, patience, tick)
		assert.NotZero(t, logged.Load())
	})
}

type lines struct{ atomic.Int64 }

func (l *lines) Print(...any) { l.Add(1) }
