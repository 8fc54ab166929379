package guard_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// A lock on a replica would not exclude the lock of that name on its source.
func TestAdvisoryOnAReplica(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		source, replica := s.Replica(t)
		direct, config := openState(t, source)
		there := config.Clone()
		there.Addr = replica.Addr()
		mysqltest.Exec(t, direct.Pool(), "CREATE TABLE x (id INT)")
		require.Eventually(t, func() bool {
			return mysqltest.Value[int](t, openDB(t, there).Pool(), "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'x'") == 1
		}, patience, tick)
		// The source continues to write, which an account sees even if it may not see the replication.
		ctx, cancel := context.WithCancel(t.Context())
		wrote := mysqltest.Result(func() error {
			for ctx.Err() == nil {
				mysqltest.Exec(t, direct.Pool(), "INSERT INTO x VALUES (1)")
				<-time.After(10 * time.Millisecond) // some rows in every second are enough; more would only take time from other tests
			}
			return nil
		})
		for _, account := range []*notify.DB{openDB(t, there), openDB(t, replica.User(t, there, "ALL ON "+config.DBName+".*"))} {
			m, err := guard.NewMutex(account, "x", guard.MutexOptions{})
			require.NoError(t, err)
			mysqltest.Eventually(t, "the mutex notices the replication", func() bool { // an account sees it if a transaction is applied in the second in which it observes
				held, err := m.TryLock(t.Context())
				if err == nil {
					require.NoError(t, held.Release(t.Context()))
					return false
				}
				return assert.ErrorIs(t, err, guard.ErrUnsafe)
			})
		}
		cancel()
		require.NoError(t, mysqltest.Receive(t, wrote))
		m, err := guard.NewMutex(direct, "x", guard.MutexOptions{})
		require.NoError(t, err)
		require.NoError(t, mustLock(t, m).Release(t.Context()))
	})
}

// If the context ends before the mutex has asked for the lock, the error does not say that another session holds it. Here the mutex first
// observes for a second whether the server, which was a replica once, is one now.
func TestLockEndsBeforeItAsks(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		if shared.IsMariaDB() {
			t.Skip("every account sees whether MariaDB is a replica")
		}
		s := shared.Start(t, "--gtid-mode=ON", "--enforce-gtid-consistency=ON")
		_, err := s.Admin(t).Exec("SET GLOBAL gtid_purged = '+00000000-0000-0000-0000-000000000001:1'")
		require.NoError(t, err)
		_, config := openState(t, s)
		m, err := guard.NewMutex(openDB(t, s.User(t, config, "ALL ON "+config.DBName+".*")), "x", guard.MutexOptions{})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		_, err = m.Lock(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.NotErrorIs(t, err, notify.ErrNotAcquired)
		require.NoError(t, mustLock(t, m).Release(t.Context()))
	})
}

// lockedOnce waits for the lock, frees it, and then returns the error.
func lockedOnce(t *testing.T, m *guard.Mutex) <-chan error {
	return mysqltest.Result(func() error {
		held, err := m.Lock(shortly(t, 2*time.Minute))
		if err == nil {
			err = held.Release(t.Context())
		}
		return err
	})
}

// A wait for a lock survives the server's death, and gets the lock that its holder lost.
func TestLockWaitsThroughARestart(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		db, _ := openState(t, s)
		m, err := guard.NewMutex(db, "x", guard.MutexOptions{})
		require.NoError(t, err)
		holder := mustLock(t, m)
		got := lockedOnce(t, m)
		require.Eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'") == 1
		}, patience, tick)
		s.Kill()
		s.Restart(t)
		require.NoError(t, mysqltest.Receive(t, got))
		require.ErrorIs(t, holder.Release(t.Context()), notify.ErrLockLost)
	})
}

// tells counts dials, and writes to the connections.
type tells struct {
	net.Conn
	writes *atomic.Int64
}

func (c tells) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(p)
}

// So does a wait for a lock in a table, however long the server is away.
func TestTableLockWaitsThroughARestart(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		db, config := openState(t, s)
		var dials, writes atomic.Int64
		config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
			dials.Add(1)
			conn, err := new(net.Dialer).DialContext(ctx, network, address)
			return tells{conn, &writes}, err
		}
		waits := openDB(t, config)
		holder, err := mutexes["lease"](db, "x")
		require.NoError(t, err)
		held := mustLock(t, holder)
		m, err := mutexes["lease"](waits, "x")
		require.NoError(t, err)
		got := lockedOnce(t, m)
		require.Eventually(t, func() bool { return writes.Load() > 20 }, patience, tick) // it has been refused several times
		s.Kill()
		before := dials.Load()
		mysqltest.Eventually(t, "it tries more often than one attempt does", func() bool { return dials.Load() > before+2*server.Attempts })
		s.Restart(t)
		_ = held.Release(t.Context()) // it may have lapsed
		require.NoError(t, mysqltest.Receive(t, got))
	})
}

// A wait for a lock survives the loss of its session to a server that is read-only for a while, as after a failover.
func TestLockWaitsWhileReadOnly(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		db, _ := openState(t, s)
		m, err := guard.NewMutex(db, "x", guard.MutexOptions{})
		require.NoError(t, err)
		holder := mustLock(t, m)
		got := lockedOnce(t, m)
		admin := s.Admin(t)
		var waiter uint64
		require.Eventually(t, func() bool {
			return admin.QueryRowContext(t.Context(), "SELECT ID FROM information_schema.PROCESSLIST WHERE STATE = 'User lock'").Scan(&waiter) == nil
		}, patience, tick)
		mysqltest.Exec(t, admin, "SET GLOBAL read_only = 1")
		mysqltest.KillSession(t, admin, waiter)
		before := mysqltest.Value[string](t, admin, "SELECT VARIABLE_VALUE FROM "+status(s)+" WHERE VARIABLE_NAME = 'Connections'")
		require.Eventually(t, func() bool { // it tries again and again
			return mysqltest.Value[bool](t, admin, "SELECT VARIABLE_VALUE > ? + 3 FROM "+status(s)+" WHERE VARIABLE_NAME = 'Connections'", before)
		}, patience, tick)
		mysqltest.Exec(t, admin, "SET GLOBAL read_only = 0")
		require.NoError(t, holder.Release(t.Context()))
		require.NoError(t, mysqltest.Receive(t, got))
	})
}

// status is the table of the server's counters.
func status(s *mysqltest.Server) string {
	if s.IsMariaDB() {
		return "information_schema.GLOBAL_STATUS"
	}
	return "performance_schema.global_status"
}
