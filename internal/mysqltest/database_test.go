package mysqltest

import (
	"database/sql"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

const (
	moment = 50 * time.Millisecond // long enough to see that something does not happen
	tick   = 5 * time.Millisecond  // between two checks of a condition
)

// The check names a session that a test has left open, and passes when the session has ended.
func TestLeftoverSession(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		db := open(t, cfg)
		require.NoError(t, s.Unused(t, cfg, moment))

		conn, err := db.Conn(t.Context())
		require.NoError(t, err)
		require.ErrorContains(t, s.Unused(t, cfg, moment), "session")

		require.NoError(t, conn.Close())
		require.NoError(t, db.Close())
		require.NoError(t, s.Unused(t, cfg, settleTime))
	})
}

// The check finds an advisory lock with the database's name even if the session that holds it has no default database.
func TestLeftoverLock(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		if !showsLocks(t, s) {
			t.Skip("this server does not show advisory locks")
		}
		cfg := s.Database(t)
		conn, err := s.Admin(t).Conn(t.Context())
		require.NoError(t, err)
		defer func() { require.NoError(t, conn.Close()) }()

		_, err = conn.ExecContext(t.Context(), "DO GET_LOCK(?, 0)", "mq:"+cfg.DBName+":t")
		require.NoError(t, err)
		require.ErrorContains(t, checkUnused(s.pool(t), cfg.DBName, moment), "advisory lock mq:"+cfg.DBName)

		_, err = conn.ExecContext(t.Context(), "DO RELEASE_LOCK(?)", "mq:"+cfg.DBName+":t")
		require.NoError(t, err)
		require.NoError(t, checkUnused(s.pool(t), cfg.DBName, settleTime))
	})
}

// showsLocks reports whether the server has a table of advisory locks: MySQL always, MariaDB with a plugin.
func showsLocks(t *testing.T, s *Server) bool {
	t.Helper()
	return !s.IsMariaDB() || number(t, s.Admin(t),
		"SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_NAME = 'METADATA_LOCK_INFO'") == 1
}

// A test's accounts are dropped at its end, and drop removes a database.
func TestDrop(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		var cfg, limited *mysql.Config
		t.Run("test", func(t *testing.T) {
			cfg = s.Database(t)
			limited = s.User(t, cfg)
			_, err := open(t, cfg).ExecContext(t.Context(), "CREATE TABLE t (id INT)")
			require.NoError(t, err)
		})
		require.NoError(t, drop(s.Admin(t), cfg.DBName, settleTime))
		var failure *mysql.MySQLError
		require.ErrorAs(t, open(t, cfg).PingContext(t.Context()), &failure)
		require.EqualValues(t, 1049, failure.Number) // unknown database
		limited.DBName = ""
		require.ErrorAs(t, open(t, limited).PingContext(t.Context()), &failure)
		require.EqualValues(t, 1045, failure.Number) // access denied
	})
}

// If a test has left a transaction open, the drop of its database fails after a time, and does not wait forever.
func TestDropOfBlockedDatabase(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		db := open(t, cfg)
		_, err := db.ExecContext(t.Context(), "CREATE TABLE t (id INT) ENGINE=InnoDB")
		require.NoError(t, err)
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO t VALUES (1)")
		require.NoError(t, err)

		admin := s.Admin(t)
		var failure *mysql.MySQLError
		require.ErrorAs(t, drop(admin, cfg.DBName, time.Second), &failure)
		require.EqualValues(t, 1205, failure.Number) // lock wait timeout
		require.NoError(t, tx.Rollback())
	})
}

// An account has only the rights that it was given.
func TestUser(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		_, err := open(t, cfg).ExecContext(t.Context(), "CREATE TABLE t (id INT)")
		require.NoError(t, err)
		limited := open(t, s.User(t, cfg, "SELECT ON "+cfg.DBName+".*"))

		require.Equal(t, 0, number(t, limited, "SELECT COUNT(*) FROM t"))
		_, err = limited.ExecContext(t.Context(), "INSERT INTO t VALUES (1)")
		var failure *mysql.MySQLError
		require.ErrorAs(t, err, &failure)
		require.EqualValues(t, 1142, failure.Number) // command denied
	})
}

// Two databases of a test have different names. Both names are in lower case, because servers treat upper case in lock names
// differently.
func TestDatabasesAreApart(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		one, two := s.Database(t), s.Database(t)
		require.NotEqual(t, one.DBName, two.DBName)
		for _, cfg := range []*mysql.Config{one, two} {
			require.Equal(t, strings.ToLower(cfg.DBName), cfg.DBName)
			var name sql.NullString
			require.NoError(t, open(t, cfg).QueryRowContext(t.Context(), "SELECT DATABASE()").Scan(&name))
			require.Equal(t, cfg.DBName, name.String)
		}
	})
}
