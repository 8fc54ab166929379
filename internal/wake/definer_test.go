package wake_test

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// open returns a DB of an account.
func open(t *testing.T, config *mysql.Config) *notify.DB {
	t.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

// An account that may execute a procedure may still do so after init has replaced the procedure.
func TestReplacedProcedureKeepsGrants(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin := open(t, config)
		mysqltest.Exec(t, admin.Pool(), "CREATE PROCEDURE "+schema.OpenWritersRoutine+"(number BIGINT UNSIGNED) SELECT 'an older version'")
		user := open(t, s.User(t, config, "EXECUTE ON PROCEDURE `"+config.DBName+"`."+schema.OpenWritersRoutine))
		for range 2 { // the second run changes nothing
			require.NoError(t, wake.Install(t.Context(), admin, options(t)))
		}
		names, err := wake.Procedures(t.Context(), admin)
		require.NoError(t, err)
		require.Empty(t, names.Outdated)
		mysqltest.Exec(t, user.Pool(), "CALL "+schema.OpenWritersRoutine+"(1)")
	})
}
