package guard_test

import (
	"context"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A lease that was free has one holder, also where the server makes all assignments of a statement at once.
func TestLeaseWithSimultaneousAssignment(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		if !s.IsMariaDB() {
			t.Skip("the mode is MariaDB's")
		}
		_, config := openState(t, s)
		config.Params = map[string]string{"sql_mode": "'ORACLE'"}
		db := openDB(t, config)
		for range 2 { // at first there is no row
			held, err := newLease(t, db, "x", time.Hour).TryLock(t.Context())
			require.NoError(t, err)
			_, err = newLease(t, db, "x", time.Hour).TryLock(t.Context())
			require.ErrorIs(t, err, notify.ErrNotAcquired)
			require.NoError(t, held.Release(t.Context()))
		}
	})
}

// LockRow and TwoStep can write on a server that logs statements, which refuses writes in READ COMMITTED.
func TestRowLocksWithStatementLog(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		db, _ := openAccounts(t, shared.Start(t, "--log-bin", "--server-id=1", "--binlog-format=STATEMENT"))
		add := func(ctx context.Context, tx *sqlx.Tx) error {
			_, err := tx.ExecContext(ctx, "UPDATE `acc``ounts` SET balance = balance + 7 WHERE id = 1")
			return err
		}
		require.NoError(t, guard.LockRow(t.Context(), db, account(1), patience, add))
		require.Equal(t, 7, balance(t, db, 1))
		call := func(context.Context) error { return nil }
		require.NoError(t, guard.TwoStep{Begin: add, Call: call, Finish: add}.Do(t.Context(), db, account(1)))
		require.Equal(t, 21, balance(t, db, 1))
	})
}
