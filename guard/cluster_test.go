package guard_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// If two servers take writes, another holder may take the lease on the other server while a
// transaction is fenced by it here, and this server does not know it yet: the server refuses
// the transaction at its commit.
func TestLeaseFenceOfAGroup(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		switch {
		case shared.IsMariaDB():
			t.Skip("MariaDB has no group replication")
		case !mysqltest.Long():
			t.Skip("starts a group, which takes its time: MQNOTIFY_LONG=1")
		}
		all := shared.Primaries(t, 2)
		here, config := openState(t, all[0])
		config = config.Clone()
		config.Addr = all[1].Addr()
		there := openDB(t, config)
		mysqltest.Exec(t, here.Pool(), "CREATE TABLE resource (id INT PRIMARY KEY, n INT)")
		mysqltest.Exec(t, here.Pool(), "CREATE TABLE hurdle (id INT PRIMARY KEY)")
		mysqltest.Exec(t, here.Pool(), "INSERT INTO resource VALUES (1, 0)")
		lease := func(db *notify.DB) *guard.Mutex { return newLease(t, db, "x", 5*time.Second) }

		token, err := lease(here).Take(t.Context())
		require.NoError(t, err)
		require.Eventually(t, func() bool { // arrived
			var tables int
			err := there.Pool().Get(&tables, "SELECT COUNT(*) FROM mqnotify_lease JOIN resource")
			return err == nil && tables == 1
		}, patience, tick)

		// The other server's changes wait behind a table that is locked here.
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

		// Both at the same time, repeatedly: a transaction that is refused has no effect.
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

// count counts up, in two steps, in a fenced transaction.
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
	lease, err := guard.NewMutex(db, "x", guard.MutexOptions{Kind: "lease", TTL: time.Minute})
	if err != nil {
		return err
	}
	if err := lease.Fence(ctx, tx, held.Token()); err != nil {
		return err
	}
	return tx.Commit()
}
