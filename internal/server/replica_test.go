package server

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A replica is detected whether it is read-only or not. MySQL shows an ordinary account only that it applies transactions.
func TestReplica(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		source, replica := s.Replica(t)
		config := source.Database(t)
		elsewhere := config.Clone()
		elsewhere.Addr = replica.Addr()
		db := open(t, config)
		_, err := db.Exec("CREATE TABLE x (id INT) ENGINE=InnoDB")
		require.NoError(t, err)
		admin := open(t, elsewhere)
		require.Eventually(t, func() bool { _, err := admin.Exec("DO (SELECT COUNT(*) FROM x)"); return err == nil }, time.Minute, 10*time.Millisecond)
		plain := open(t, replica.User(t, elsewhere, "ALL ON "+config.DBName+".*"))

		c, err := Discover(t.Context(), db)
		require.NoError(t, err)
		assert.False(t, c.Replica || c.MayBeReplica || c.WritersElsewhere())
		_, err = db.Exec("INSERT INTO x VALUES (1)")
		require.NoError(t, err)
		grows, err := c.Growth().Grows(t.Context(), db)
		require.NoError(t, err)
		assert.False(t, grows, "these are its own transactions")

		c, err = Discover(t.Context(), admin)
		require.NoError(t, err)
		assert.True(t, c.Replica && !c.MayBeReplica && c.WritersElsewhere())
		c, err = Discover(t.Context(), plain)
		require.NoError(t, err)
		assert.Equal(t, s.IsMariaDB(), c.Replica)
		assert.Equal(t, !s.IsMariaDB(), c.MayBeReplica)
		if !s.IsMariaDB() {
			sees, err := Discover(t.Context(), open(t, replica.User(t, elsewhere, "ALL ON "+config.DBName+".*",
				"SELECT ON performance_schema.replication_applier_status")))
			require.NoError(t, err)
			assert.True(t, sees.Replica && !sees.MayBeReplica)
		}
		_, err = db.Exec("INSERT INTO x VALUES (2)")
		require.NoError(t, err)
		growth := c.Growth()
		require.Eventually(t, func() bool {
			grows, err := growth.Grows(t.Context(), plain)
			require.NoError(t, err)
			return grows
		}, time.Minute, 10*time.Millisecond)

		replica.Promote(t)
		c, err = Discover(t.Context(), admin)
		require.NoError(t, err)
		assert.False(t, c.Replica || c.MayBeReplica || c.WritersElsewhere())
		c, err = Discover(t.Context(), plain)
		require.NoError(t, err)
		assert.False(t, c.Replica)
		_, err = plain.Exec("INSERT INTO x VALUES (3)")
		require.NoError(t, err)
		grows, err = c.Growth().Grows(t.Context(), plain)
		require.NoError(t, err)
		assert.False(t, grows)
	})
}

// A replica of MySQL without GTIDs is detected by its applier, by an account that may see it.
func TestReplicaWithoutGTIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if shared.IsMariaDB() {
			t.Skip("MariaDB has GTIDs always")
		}
		s := shared.Start(t, "--server-id=2")
		db := open(t, s.Database(t))
		c, err := Discover(t.Context(), db)
		require.NoError(t, err)
		require.False(t, c.GTID || c.Replica || c.MayBeReplica)
		for _, statement := range []string{"CHANGE REPLICATION SOURCE TO SOURCE_HOST = '127.0.0.1'", "START REPLICA SQL_THREAD"} {
			_, err := s.Admin(t).Exec(statement)
			require.NoError(t, err)
		}
		c, err = Discover(t.Context(), db)
		require.NoError(t, err)
		assert.True(t, c.Replica && c.WritersElsewhere())
	})
}

// A server that has the transactions of many former servers is no replica.
func TestManyGTIDs(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if shared.IsMariaDB() {
			t.Skip("MariaDB's positions are short")
		}
		s := shared.Start(t, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
		var sets []string
		for i := range 40 {
			sets = append(sets, fmt.Sprintf("00000000-0000-0000-0000-%012d:1", i))
		}
		_, err := s.Admin(t).Exec("SET GLOBAL gtid_purged = '+" + strings.Join(sets, ",") + "'")
		require.NoError(t, err)
		config := s.Database(t)
		for _, config := range []*mysql.Config{config, s.User(t, config, "ALL ON "+config.DBName+".*")} {
			db := open(t, config)
			c, err := Discover(t.Context(), db)
			require.NoError(t, err)
			grows, err := c.Growth().Grows(t.Context(), db)
			require.NoError(t, err)
			require.False(t, grows)
		}
	})
}
