package guard_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/child"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// primaries are servers of one replication group, which all take writes.
func primaries(t *testing.T, shared *mysqltest.Server, count int) []*mysqltest.Server {
	t.Helper()
	var all []*mysqltest.Server
	var seeds []string
	for n := range count {
		s := shared.Start(t, fmt.Sprintf("--server-id=%d", n+1), "--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON",
			"--report-host=127.0.0.1", "--replica-parallel-workers=1")
		var folder string
		require.NoError(t, s.Admin(t).QueryRow("SELECT @@datadir").Scan(&folder))
		s.Stop()
		require.NoError(t, os.Remove(filepath.Join(folder, "auto.cnf")), "which has the name that all copies have")
		s.Restart(t)
		port, err := child.FreePort()
		require.NoError(t, err)
		seeds = append(seeds, fmt.Sprintf("127.0.0.1:%d", port))
		all = append(all, s)
	}
	for n, s := range all {
		admin := s.Admin(t)
		if _, err := admin.Exec("INSTALL PLUGIN group_replication SONAME 'group_replication.so'"); err != nil {
			t.Skipf("needs the plugin group_replication: %v", err)
		}
		for _, query := range []string{
			"RESET BINARY LOGS AND GTIDS",
			"SET GLOBAL group_replication_group_name = '8a5f6f0e-2f0c-4c51-9a4c-0d1c1a4b7d10'",
			"SET GLOBAL group_replication_single_primary_mode = OFF",
			"SET GLOBAL group_replication_local_address = '" + seeds[n] + "'",
			"SET GLOBAL group_replication_group_seeds = '" + strings.Join(seeds, ",") + "'",
			"SET GLOBAL group_replication_ip_allowlist = '127.0.0.1/32'",
			"CHANGE REPLICATION SOURCE TO SOURCE_USER = 'root' FOR CHANNEL 'group_replication_recovery'",
			fmt.Sprintf("SET GLOBAL group_replication_bootstrap_group = %v", n == 0),
			"START GROUP_REPLICATION",
			"SET GLOBAL group_replication_bootstrap_group = OFF",
		} {
			_, err := admin.Exec(query)
			require.NoError(t, err, query)
		}
		require.Eventually(t, func() bool { return online(admin) == n+1 }, 2*patience, 10*tick)
	}
	return all
}

func online(admin *sql.DB) (n int) {
	_ = admin.QueryRow("SELECT COUNT(*) FROM performance_schema.replication_group_members WHERE MEMBER_STATE = 'ONLINE'").Scan(&n)
	return n
}

// Where two servers take writes, somebody takes the lease on the other one while a
// transaction is fenced by it here, and this server has not heard of it: the transaction
// is refused at its commit.
func TestLeaseFenceOfAGroup(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		switch {
		case shared.IsMariaDB():
			t.Skip("MariaDB has no group replication")
		case !mysqltest.Long():
			t.Skip("starts a group, which takes its time: MQNOTIFY_LONG=1")
		}
		all := primaries(t, shared, 2)
		here, config := openState(t, all[0])
		config = config.Clone()
		config.Addr = all[1].Addr()
		there := openDB(t, config)
		mysqltest.Exec(t, here.Pool(), "CREATE TABLE resource (id INT PRIMARY KEY, n INT)")
		mysqltest.Exec(t, here.Pool(), "CREATE TABLE hurdle (id INT PRIMARY KEY)")
		mysqltest.Exec(t, here.Pool(), "INSERT INTO resource VALUES (1, 0)")
		lease := func(db *notify.DB) *guard.Lease { return newLease(t, db, "x", 5*time.Second) }

		token, err := lease(here).Take(t.Context())
		require.NoError(t, err)
		require.Eventually(t, func() bool { // arrived
			var tables int
			err := there.Pool().Get(&tables, "SELECT COUNT(*) FROM mqnotify_lease JOIN resource")
			return err == nil && tables == 1
		}, patience, tick)

		// What comes from there waits behind a table that is locked here.
		hurdle, err := here.Pool().Connx(t.Context())
		require.NoError(t, err)
		defer func() { _ = hurdle.Close() }()
		_, err = hurdle.ExecContext(t.Context(), "LOCK TABLES hurdle READ")
		require.NoError(t, err)
		mysqltest.Exec(t, there.Pool(), "INSERT INTO hurdle VALUES (1)")

		tx, err := here.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = tx.Rollback() }()
		_, err = tx.Exec("UPDATE resource SET n = n + 1")
		require.NoError(t, err)
		require.NoError(t, lease(here).Fence(t.Context(), tx, token))
		next := mustLock(t, lease(there)) // when it has expired
		require.Greater(t, next.Token(), token)
		err = tx.Commit()
		_, unlocked := hurdle.ExecContext(t.Context(), "UNLOCK TABLES")
		require.NoError(t, unlocked)
		require.Error(t, err, "two holders wrote")
		require.True(t, server.Is(err, server.ErrRolledBackInCommit), err)
		require.NoError(t, next.Release(t.Context()))
		require.Zero(t, mysqltest.Value[int](t, here.Pool(), "SELECT n FROM resource"))

		// Both at the same time, again and again: whoever is refused has done nothing.
		var both sync.WaitGroup
		const each = 20
		for _, db := range []*notify.DB{here, there} {
			both.Go(func() {
				for done := 0; done < each; {
					ctx := shortly(t, patience)
					held, err := newLease(t, db, "x", time.Minute).Lock(ctx)
					if !assert.NoError(t, err) {
						return
					}
					if count(ctx, db, held) == nil {
						done++
					}
					assert.NoError(t, held.Release(ctx))
				}
			})
		}
		both.Wait()
		require.Eventually(t, func() bool { return mysqltest.Value[int](t, here.Pool(), "SELECT n FROM resource") == 2*each }, patience, tick)
	})
}

// count counts up, in two steps, in a transaction that is fenced.
func count(ctx context.Context, db *notify.DB, held guard.Held) error {
	tx, err := db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	var n int
	if err := tx.GetContext(ctx, &n, "SELECT n FROM resource"); err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, "UPDATE resource SET n = ?", n+1); err != nil {
		return err
	}
	lease, err := guard.NewLease(db, held.Name(), guard.LeaseOptions{TTL: time.Minute})
	if err != nil {
		return err
	}
	if err := lease.Fence(ctx, tx, held.Token()); err != nil {
		return err
	}
	return tx.Commit()
}
