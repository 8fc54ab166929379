package server

import (
	"context"
	"database/sql"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestCapabilitiesFromVariables(t *testing.T) {
	for name, test := range map[string]struct {
		variables     string
		want          Capabilities
		elsewhere     bool
		has, hasNever string
	}{
		"nothing known": {"", Capabilities{}, false, "", "version"},
		"MySQL": {
			"version=9.7.4 version_comment=Community gtid_mode=ON log_bin=ON read_only=OFF super_read_only=OFF innodb_read_only=OFF " +
				"max_allowed_packet=67108864 autocommit=ON " +
				"lower_case_table_names=1 server_uuid=1-2-3 max_execution_time=0",
			Capabilities{
				Version: "9.7.4", VersionComment: "Community", GTID: true, Autocommit: true,
				MaxAllowedPacket: 67108864, LowerCaseTableNames: 1, ServerUUID: "1-2-3",
			},
			false, "max_execution_time", "max_statement_time",
		},
		"GTID mode without a binary log": {"version=8.4.0 gtid_mode=ON log_bin=OFF", Capabilities{Version: "8.4.0"}, false, "", ""},
		"GTID mode that only permits":    {"version=8.4.0 gtid_mode=ON_PERMISSIVE log_bin=ON", Capabilities{Version: "8.4.0"}, false, "", ""},
		"MariaDB": {
			"version=10.11.19-MariaDB-0+deb12u1 wsrep_on=OFF log_bin=1 autocommit=OFF max_statement_time=0.000000",
			Capabilities{Version: "10.11.19-MariaDB-0+deb12u1", MariaDB: true},
			false, "max_statement_time", "max_execution_time",
		},
		"Galera": {
			"version=10.11.19-MariaDB wsrep_on=ON",
			Capabilities{Version: "10.11.19-MariaDB", MariaDB: true, Galera: true}, true, "", "",
		},
		"Percona XtraDB Cluster": {
			"version=8.0.36-28.1 wsrep_on=1",
			Capabilities{Version: "8.0.36-28.1", Galera: true}, true, "", "",
		},
		"group with one primary": {
			"version=9.7.4 group_replication_group_name=aaaa group_replication_single_primary_mode=ON",
			Capabilities{Version: "9.7.4", GroupReplication: true}, false, "", "",
		},
		"group with many primaries": {
			"version=9.7.4 group_replication_group_name=aaaa group_replication_single_primary_mode=OFF",
			Capabilities{Version: "9.7.4", GroupReplication: true, MultiPrimary: true}, true, "", "",
		},
		"plugin of a group, without a group": {
			"version=9.7.4 group_replication_group_name= group_replication_single_primary_mode=OFF",
			Capabilities{Version: "9.7.4"}, false, "", "",
		},
		"replica":       {"read_only=ON", Capabilities{ReadOnly: true}, true, "", ""},
		"super replica": {"read_only=1 super_read_only=ON", Capabilities{ReadOnly: true}, true, "", ""},
		"read-only engine": {
			"read_only=OFF innodb_read_only=ON", Capabilities{ReadOnly: true}, true, "", "",
		},
		"replica of MariaDB 12": {
			"version=12.1.2-MariaDB read_only=NO_LOCK_NO_ADMIN",
			Capabilities{Version: "12.1.2-MariaDB", MariaDB: true, ReadOnly: true}, true, "", "",
		},
		"numbers that are none": {"max_allowed_packet=much", Capabilities{}, false, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			known := map[string]string{}
			for pair := range strings.FieldsSeq(test.variables) {
				variable, value, _ := strings.Cut(pair, "=")
				known[variable] = value
			}
			got := capabilities(known)
			assert.Equal(t, test.elsewhere, got.WritersElsewhere())
			if test.has != "" {
				assert.True(t, got.Has(test.has))
			}
			assert.False(t, got.Has(test.hasNever))
			test.want.variables = known
			assert.Equal(t, &test.want, got)
		})
	}
}

func TestSettings(t *testing.T) {
	c := capabilities(map[string]string{"autocommit": "1", "wait_timeout": "1", "max_execution_time": "0"})
	assert.Equal(t, "SET SESSION autocommit = 1, max_execution_time = 0",
		c.Settings("autocommit", "1", "max_statement_time", "0", "max_execution_time", "0"))
	assert.Empty(t, c.Settings("max_statement_time", "0"))
	assert.Empty(t, c.Settings())
}

func open(t *testing.T, config *mysql.Config) *sql.DB {
	t.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func TestDiscover(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.Params = map[string]string{"autocommit": "0"}
		db := open(t, config)
		c, err := Discover(t.Context(), db)
		require.NoError(t, err)
		var version string
		require.NoError(t, db.QueryRow("SELECT VERSION()").Scan(&version))
		assert.Equal(t, version, c.Version)
		assert.NotEmpty(t, c.VersionComment)
		assert.Equal(t, s.IsMariaDB(), c.MariaDB)
		assert.Equal(t, !s.IsMariaDB(), c.ServerUUID != "" && !c.Has("max_statement_time"))
		assert.Equal(t, s.IsMariaDB(), c.Has("max_statement_time"))
		assert.Equal(t, !s.IsMariaDB(), c.Has("max_execution_time"))
		assert.False(t, c.ReadOnly || c.Galera || c.GroupReplication || c.MultiPrimary || c.GTID || c.Autocommit, "%+v", c)
		assert.False(t, c.WritersElsewhere())
		assert.GreaterOrEqual(t, c.MaxAllowedPacket, 1<<20)

		// The server accepts every setting of ForWaits.
		_, err = db.Exec(c.Settings("autocommit", "1", "max_statement_time", "0", "max_execution_time", "0",
			"idle_transaction_timeout", "0", "lock_wait_timeout", "2", "long_query_time", "3600", "time_zone", "'+00:00'"))
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err = Discover(ctx, db)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "server: read variables: ")
	})
}

func TestReadOnlyServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config := own.Database(t)
		admin := own.Admin(t)
		user := open(t, own.User(t, config, "ALL ON "+config.DBName+".*"))
		_, err := user.Exec("CREATE TABLE x (id INT) ENGINE=InnoDB")
		require.NoError(t, err)
		values := []string{"ON"}
		for _, value := range []string{"NO_LOCK", "NO_LOCK_NO_ADMIN"} { // of newer MariaDB
			if _, err := admin.Exec("SET GLOBAL read_only = " + value); err == nil {
				values = append(values, value)
			}
		}
		for _, value := range values {
			_, err = admin.Exec("SET GLOBAL read_only = " + value)
			require.NoError(t, err)
			c, err := Discover(t.Context(), user)
			require.NoError(t, err)
			assert.True(t, c.ReadOnly, value)
			assert.True(t, c.WritersElsewhere())
			_, err = user.Exec("INSERT INTO x VALUES (1)")
			require.Error(t, err)
			assert.True(t, ReadOnly(err), err)
			assert.False(t, ConnectionLost(err) || NoPrivilege(err) || Retryable(err))
		}
		_, err = admin.Exec("SET GLOBAL read_only = OFF")
		require.NoError(t, err)
		_, err = user.Exec("INSERT INTO x VALUES (1)")
		require.NoError(t, err)
	})
}

// A server with a binary log, and with GTIDs if it has such a mode.
func TestGTIDServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if s.IsMariaDB() {
			t.Skip("MariaDB has no gtid_mode, and nothing that waits for a commit")
		}
		own := s.Start(t, "--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
		c, err := Discover(t.Context(), own.Admin(t))
		require.NoError(t, err)
		assert.True(t, c.GTID)
	})
}
