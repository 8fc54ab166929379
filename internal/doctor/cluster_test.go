package doctor

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

const (
	patience = time.Minute
	tick     = 20 * time.Millisecond
)

// In a cluster of two nodes, the doctor warns of Galera, and finds that the remaining node has no majority when the other one
// dies.
func TestGaleraNode(t *testing.T) {
	mysqltest.NotShort(t, "TestReplica")
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if !shared.IsMariaDB() {
			t.Skip("MySQL has no Galera")
		}
		nodes := shared.Galera(t, 2)
		_, db := initialised(t, nodes[0])

		found := examine(t, db, "orders")
		says(t, found.only(t, "cluster"), Warning, "a node of a Galera cluster", "to the same server")
		says(t, found.only(t, "delay"), OK, "behind the others, and a gap in the ids stays open for 1m0s", "")
		says(t, found.only(t, "locks"), OK, "advisory locks work", "")
		says(t, found.only(t, "writers"), OK, "for transactions of other servers a gap stays open for 1m0s (--grace), and a row that arrives later is LOST", "")
		assert.NotContains(t, found.only(t, "writers").Text, "lock shows")
		says(t, found.only(t, "mode"), Warning, "consume polls at least once a second (the server's locks do not reach all writers of its tables)", "a server that alone takes all writes")
		assert.Len(t, found.worse(), 2, "%v", found)

		nodes[1].Kill()
		require.Eventually(t, func() bool {
			found = examine(t, db)
			return len(found.of("cluster")) == 1 && found.only(t, "cluster").Level == Problem
		}, patience, tick)
		says(t, found.only(t, "cluster"), Problem, "a node of a Galera cluster without a quorum (wsrep_cluster_status is non-Primary)", "the part with the majority")
		nodes[0].Bootstrap(t) // so that the database can be dropped
	})
}

// The doctor recognizes a member of a group in which all members take writes.
func TestGroupWithSeveralPrimaries(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if shared.IsMariaDB() {
			t.Skip("MariaDB has no group replication")
		}
		_, db := initialised(t, shared.Primaries(t, 2)[0])
		found := examine(t, db, "orders")
		says(t, found.only(t, "cluster"), Warning, "a member of a replication group with several primaries", "to the same server")
		says(t, found.only(t, "delay"), OK, "behind the others, and a gap in the ids stays open for 1m0s", "")
		says(t, found.only(t, "writers"), OK, "for transactions of other servers a gap stays open for 1m0s (--grace), and a row that arrives later is LOST", "")
	})
}

// A replica is a warning, even if it takes writes, which is the default, because consumers refuse to run there. The doctor
// measures the replication delay.
func TestReplica(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		source, replica := shared.Replica(t)
		config, db := initialised(t, source)
		says(t, examine(t, db).only(t, "cluster"), OK, "no Galera, no group replication, no replica", "")

		there := config.Clone()
		there.Addr = replica.Addr()
		copied := open(t, there)
		require.Eventually(t, func() bool {
			_, err := copied.Pool().ExecContext(t.Context(), "DO (SELECT COUNT(*) FROM orders)")
			return err == nil
		}, patience, tick)
		found := examine(t, copied, "orders")
		says(t, found.only(t, "cluster"), Warning, "a replica of another server: groups and locks are refused here", "connect to the server that takes the writes")
		says(t, found.only(t, "delay"), OK, "behind the others, and a gap in the ids stays open for 1m0s", "")
		says(t, found.only(t, "writers"), OK, "a row that arrives later is LOST", "")
		assert.Contains(t, slices.Collect(ForStatus(t.Context(), copied, Options{Timeout: time.Minute})), found.only(t, "cluster"))

		plain := open(t, replica.User(t, there, "ALL ON "+config.DBName+".*"))
		found = examine(t, plain)
		if shared.IsMariaDB() {
			says(t, found.only(t, "cluster"), Warning, "a replica of another server", "")
		} else {
			says(t, found.only(t, "cluster"), Warning, "can't see whether it still does", "GRANT SELECT ON performance_schema.replication_applier_status")
		}

		// This INSERT is two minutes old, and the replica can't apply it yet.
		locked := session(t, copied)
		_, err := locked.ExecContext(t.Context(), "LOCK TABLES orders WRITE")
		require.NoError(t, err)
		writer := session(t, db)
		past := "SET SESSION timestamp = UNIX_TIMESTAMP() - 120"
		if !shared.IsMariaDB() {
			past = "SET SESSION original_commit_timestamp = (UNIX_TIMESTAMP() - 120) * 1000000"
		}
		for _, statement := range []string{past, "INSERT INTO orders (payload) VALUES ('late')"} {
			_, err := writer.ExecContext(t.Context(), statement)
			require.NoError(t, err)
		}
		require.Eventually(t, func() bool {
			found = examine(t, copied)
			return found.only(t, "delay").Level == Problem
		}, patience, tick)
		says(t, found.only(t, "delay"), Problem, "rows are LOST if it falls further behind", "consume --grace ")
		_, err = locked.ExecContext(context.WithoutCancel(t.Context()), "UNLOCK TABLES")
		require.NoError(t, err)
	})
}
