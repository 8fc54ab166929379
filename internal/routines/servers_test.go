package routines_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The procedures work on a server that has table names in lower case and a binary log of statements.
func TestSettings(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const topic = "Orders"
		config, db := database(t, s.Start(t, "--lower-case-table-names=1", "--log-bin", "--server-id=1", "--binlog-format=STATEMENT",
			"--log-bin-trust-function-creators=1"), topic)
		lead(t, config, topic)
		caller := connect(t, db, "SET autocommit = 0")
		result := caller.waits(t, db, topic, 0, 60)
		mysqltest.AwaitState(t, db.Pool(), caller.id, mysqltest.WaitsForLock)
		mysqltest.ExecAll(t, db.Pool(), "CALL mqnotify_publish('"+topic+"', NULL, 'x')", "CALL mqnotify_notify('reload', 'x')")
		require.Equal(t, value(1), mysqltest.Receive(t, result))
		n, err := caller.listen(t.Context(), "reload", 0, 60)
		require.NoError(t, err)
		require.Equal(t, notification{1, "x"}, n)
	})
}

// On a read-only server the procedures that write fail. Those that wait find the rows that replication brings.
func TestReadOnly(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		s = s.Start(t)
		config, db := database(t, s, "orders")
		admin := connect(t, db)
		caller := connect(t, open(t, s.User(t, config, "SELECT, INSERT, EXECUTE ON `"+config.DBName+"`.*")))
		mysqltest.Exec(t, admin, "SET GLOBAL read_only = ON")
		defer mysqltest.Exec(t, admin, "SET GLOBAL read_only = OFF")
		for _, call := range []string{"mqnotify_publish('orders', NULL, 'x')", "mqnotify_notify('reload', 'x')"} {
			_, err := caller.ExecContext(t.Context(), "CALL "+call)
			refused(t, err, "HY000", "read-only")
		}
		result := caller.waits(t, db, "orders", 0, 60)
		mysqltest.AwaitState(t, db.Pool(), caller.id, "User sleep")
		mysqltest.Exec(t, admin, "INSERT INTO orders (payload) VALUES ('x')") // root can write, as replication does
		require.Equal(t, value(1), mysqltest.Receive(t, result))
	})
}

// On a replica, the procedures that wait find the rows that replication brings, and those that write fail if the replica is
// read-only. The rows that the procedures write on the source arrive on the replica once.
func TestReplica(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		source, replica := s.Replica(t)
		config, db := database(t, source, "orders")
		there := config.Clone()
		there.Addr = replica.Addr()
		admin := open(t, there)
		mysqltest.Eventually(t, "the replica has the procedures", func() bool {
			_, err := admin.Pool().ExecContext(t.Context(), "CALL mqnotify_wait('orders', 0, 0)")
			return err == nil
		})
		mysqltest.Exec(t, admin.Pool(), "SET GLOBAL read_only = ON")
		db2 := open(t, replica.User(t, there, "SELECT, INSERT, EXECUTE ON `"+config.DBName+"`.*"))
		caller, listener := connect(t, db2), connect(t, db2)
		for _, call := range []string{"mqnotify_publish('orders', NULL, 'x')", "mqnotify_notify('reload', 'x')"} {
			_, err := caller.ExecContext(t.Context(), "CALL "+call)
			refused(t, err, "HY000", "read-only")
		}
		row := caller.waits(t, db2, "orders", 0, 60)
		heard := mysqltest.Result(func() any {
			n, err := listener.listen(t.Context(), "reload", 0, 60)
			if err != nil {
				return err
			}
			return n
		})
		mysqltest.AwaitState(t, admin.Pool(), caller.id, "User sleep")
		mysqltest.ExecAll(t, db.Pool(), "CALL mqnotify_publish('orders', NULL, 'x')", "CALL mqnotify_notify('reload', 'x')")
		require.Equal(t, value(1), mysqltest.Receive(t, row))
		require.Equal(t, notification{1, "x"}, mysqltest.Receive(t, heard))
		require.Equal(t, 1, mysqltest.Value[int](t, admin.Pool(), "SELECT COUNT(*) FROM orders"))
		require.Equal(t, 1, mysqltest.Value[int](t, admin.Pool(), "SELECT COUNT(*) FROM mqnotify_notification"))
	})
}
