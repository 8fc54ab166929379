package wake_test

import (
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
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

// When the procedures get another owner, because a trigger of the earlier one would fail, the triggers of other tables get it too.
func TestTriggersFollowProcedures(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, admin := openAdmin(t, s)
		database := "`" + config.DBName + "`."
		owner := s.User(t, config, "SELECT, CREATE ROUTINE, ALTER ROUTINE ON "+database+"*", "TRIGGER ON "+database+"orders")
		require.NoError(t, wake.Install(t.Context(), open(t, owner), options(t), "orders"))
		statement, err := waiting.Trigger(config.DBName, "orders", "insert")
		require.NoError(t, err)
		for range 2 {
			require.NoError(t, wake.Install(t.Context(), admin, options(t), "invoices"))
			states, err := wake.Status(t.Context(), admin)
			require.NoError(t, err)
			require.Len(t, states, 2)
			for _, s := range states {
				require.Empty(t, s.Problem, s.Table)
			}
			// As after an init that was interrupted when it had replaced the procedures.
			mysqltest.ExecAll(t, admin.Pool(), "DROP TRIGGER mqnotify_wake_insert_orders",
				strings.Replace(statement, "CREATE TRIGGER", "CREATE DEFINER = '"+owner.User+"'@'%' TRIGGER", 1))
		}
	})
}

// No trigger is made in the name of an owner whose triggers would make writes to the table fail.
func TestOwnerWithoutTrigger(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, admin := openAdmin(t, s)
		database := "`" + config.DBName + "`."
		owner := s.User(t, config, "SELECT, CREATE ROUTINE, ALTER ROUTINE ON "+database+"*", "TRIGGER ON "+database+"orders")
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "invoices"))
		for _, r := range waiting.Routines(config.DBName) {
			mysqltest.Exec(t, admin.Pool(), "DROP PROCEDURE "+r.Name)
		}
		require.NoError(t, wake.Install(t.Context(), open(t, owner), options(t), "orders"))
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "orders"), "it can't repair the trigger of invoices")
		mysqltest.Exec(t, admin.Pool(), "INSERT INTO invoices (payload) VALUES ('x')")
		require.ErrorIs(t, wake.Install(t.Context(), admin, options(t), "orders", "invoices"), wake.ErrDenied)
		mysqltest.Exec(t, admin.Pool(), "INSERT INTO invoices (payload) VALUES ('x')")
	})
}

// An account that may not make triggers in the name of the procedures' owner does not drop the owner's triggers.
func TestTriggerOfAnotherAccountStays(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, admin := openAdmin(t, s)
		owner, other := s.User(t, config, "ALL ON `"+config.DBName+"`.*"), s.User(t, config, "ALL ON `"+config.DBName+"`.*")
		require.NoError(t, wake.Install(t.Context(), open(t, owner), options(t), "orders"))
		statement, err := waiting.Trigger(config.DBName, "orders", "insert")
		require.NoError(t, err)
		older := strings.NewReplacer("CREATE TRIGGER", "CREATE DEFINER = '"+owner.User+"'@'%' TRIGGER", "IF IS_USED_LOCK", "IF TRUE AND IS_USED_LOCK")
		mysqltest.ExecAll(t, admin.Pool(), "DROP TRIGGER mqnotify_wake_insert_orders", older.Replace(statement))
		isOlder := func() bool {
			return mysqltest.Value[bool](t, admin.Pool(), `SELECT ACTION_STATEMENT LIKE '%TRUE AND%' FROM information_schema.TRIGGERS
				WHERE EVENT_OBJECT_SCHEMA = DATABASE() AND DEFINER = ?`, owner.User+"@%")
		}
		require.ErrorIs(t, wake.Install(t.Context(), open(t, other), options(t), "orders"), wake.ErrDenied)
		require.True(t, isOlder())
		require.NoError(t, wake.Install(t.Context(), admin, options(t), "orders"))
		require.False(t, isOlder())
	})
}

// openAdmin makes a database with two topics, in which accounts without SUPER may make triggers.
func openAdmin(t *testing.T, s *mysqltest.Server) (*mysql.Config, *notify.DB) {
	t.Helper()
	config := s.Database(t)
	admin := open(t, config)
	require.NoError(t, schema.Init(t.Context(), admin.Pool(), "orders", "invoices"))
	if !s.IsMariaDB() { // its binary log is on
		mysqltest.Exec(t, admin.Pool(), "SET GLOBAL log_bin_trust_function_creators = 1")
	}
	return config, admin
}
