package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

const accounts = "CREATE TABLE `acc``ounts` (id INT PRIMARY KEY, owner VARCHAR(20) UNIQUE, state VARCHAR(20) NOT NULL DEFAULT 'new', balance INT NOT NULL DEFAULT 0)"

func account(id any) guard.RowRef { return guard.RowRef{Table: "acc`ounts", Key: "id", Value: id} }

func openAccounts(tb testing.TB, s *mysqltest.Server) (*notify.DB, *mysql.Config) {
	tb.Helper()
	db, config := openState(tb, s)
	mysqltest.Exec(tb, db.Pool(), accounts)
	mysqltest.Exec(tb, db.Pool(), "INSERT INTO `acc``ounts` (id, owner) VALUES (1, 'one'), (2, 'two'), (3, 'three'), (4, 'four')")
	return db, config
}

func balance(tb testing.TB, db *notify.DB, id int) int {
	tb.Helper()
	return mysqltest.Value[int](tb, db.Pool(), "SELECT balance FROM `acc``ounts` WHERE id = ?", id)
}

// One transaction at a time has the row, so a read and a write in two statements lose
// no update. A function that fails or panics changes nothing.
func TestLockRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openAccounts(t, s)
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 10 {
					err := guard.LockRow(t.Context(), db, account(1), patience, func(ctx context.Context, tx *sqlx.Tx) error {
						var n int
						if err := tx.GetContext(ctx, &n, "SELECT balance FROM `acc``ounts` WHERE id = 1"); err != nil {
							return err
						}
						_, err := tx.ExecContext(ctx, "UPDATE `acc``ounts` SET balance = ? WHERE id = 1", n+1)
						return err
					})
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		require.Equal(t, 80, balance(t, db, 1))
		// The connections have their former lock wait timeout.
		require.Equal(t, mysqltest.Value[int](t, db.Pool(), "SELECT @@GLOBAL.innodb_lock_wait_timeout"), mysqltest.Value[int](t, db.Pool(), "SELECT @@innodb_lock_wait_timeout"))

		no := errors.New("no")
		spoil := func(end func() error) func(ctx context.Context, tx *sqlx.Tx) error {
			return func(ctx context.Context, tx *sqlx.Tx) error {
				_, err := tx.ExecContext(ctx, "UPDATE `acc``ounts` SET balance = 0")
				return errors.Join(err, end())
			}
		}
		require.ErrorIs(t, guard.LockRow(t.Context(), db, account(1), 0, spoil(func() error { return no })), no)
		require.Panics(t, func() {
			_ = guard.LockRow(t.Context(), db, account(1), 0, spoil(func() error { panic("no") }))
		})
		ctx, cancel := context.WithCancelCause(t.Context())
		require.ErrorIs(t, guard.LockRow(ctx, db, account(1), 0, spoil(func() error { cancel(no); return nil })), no)
		require.Equal(t, 80, balance(t, db, 1))
	})
}

// A locked row with every way of waiting, and a missing row.
func TestLockRowHeld(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openAccounts(t, s)
		holder, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = holder.Rollback() }()
		_, err = holder.Exec("SELECT * FROM `acc``ounts` WHERE id = 1 FOR UPDATE")
		require.NoError(t, err)
		nothing := func(context.Context, *sqlx.Tx) error { return nil }

		for _, o := range []time.Duration{-1, time.Millisecond} {
			begun := time.Now()
			require.ErrorIs(t, guard.LockRow(t.Context(), db, account(1), o, nothing), notify.ErrNotAcquired, o)
			if o < 0 {
				require.Less(t, time.Since(begun), patience, "the server's lock wait timeout")
			}
			require.ErrorIs(t, guard.LockRow(t.Context(), db, account(9), o, nothing), guard.ErrNoRow, o)
			require.NoError(t, guard.LockRow(t.Context(), db, account(2), o, nothing), o)
			require.NoError(t, guard.LockRow(t.Context(), db, guard.RowRef{Table: "acc`ounts", Key: "owner", Value: "two"}, o, nothing), o)
		}
		enough := errors.New("enough")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 100*time.Millisecond, enough)
		defer cancel()
		require.ErrorIs(t, guard.LockRow(ctx, db, account(1), 0, nothing), enough)

		waits := mysqltest.Result(func() error { return guard.LockRow(t.Context(), db, account(1), 0, nothing) })
		require.NoError(t, holder.Rollback())
		require.NoError(t, mysqltest.Receive(t, waits))
	})
}

// LockRow repeats the transaction after a deadlock, so the caller does not see it.
func TestLockRowDeadlock(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openAccounts(t, s)
		before := guard.Retried()
		var all sync.WaitGroup
		for n := range 4 {
			all.Go(func() {
				from, to := 1+n%2, 2-n%2 // half of them the other way round
				for range 10 {
					err := guard.LockRow(t.Context(), db, account(from), 0, func(ctx context.Context, tx *sqlx.Tx) error {
						_, err := tx.ExecContext(ctx, "UPDATE `acc``ounts` SET balance = balance - 1 WHERE id = ?", from)
						if err == nil {
							_, err = tx.ExecContext(ctx, "UPDATE `acc``ounts` SET balance = balance + 1 WHERE id = ?", to)
						}
						return err
					})
					assert.NoError(t, err)
				}
			})
		}
		all.Wait()
		require.Zero(t, balance(t, db, 1)+balance(t, db, 2))
		t.Logf("%d transactions were run again", guard.Retried()-before)
	})
}

func TestLockRowRefuses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openAccounts(t, s)
		lock := func(row guard.RowRef, wait time.Duration) error {
			return guard.LockRow(t.Context(), db, row, wait, func(context.Context, *sqlx.Tx) error { return errors.New("it ran") })
		}
		for says, err := range map[string]error{
			"UNIQUE KEY":    lock(guard.RowRef{Table: "acc`ounts", Key: "balance", Value: 0}, 0),
			"no column":     lock(guard.RowRef{Table: "acc`ounts", Key: "nonsense", Value: 0}, 0),
			"holds strings": lock(guard.RowRef{Table: "acc`ounts", Key: "owner", Value: 0}, 0),
			"a row's wait":  lock(account(1), time.Nanosecond),
		} {
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, says)
		}
		var invalid *ident.InvalidError
		require.ErrorAs(t, lock(guard.RowRef{Table: "x ", Key: "id", Value: 1}, 0), &invalid)
		require.ErrorIs(t, guard.TwoStep{}.Do(t.Context(), db, account(1)), notify.ErrOptions)
	})
}

// The pitfall of LIMIT with a lock, and the reason why LockRow requires a unique key: a search
// without an index locks the rows that it passes, so that the second worker gets
// nothing although there is work.
func TestLimitWithLock(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openAccounts(t, s)
		begin := func() *sqlx.Tx {
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			t.Cleanup(func() { _ = tx.Rollback() })
			return tx
		}
		free := func(tx *sqlx.Tx, how string) (ids []int) {
			err := tx.SelectContext(t.Context(), &ids, "SELECT id FROM `acc``ounts` WHERE state = 'new' ORDER BY balance, id LIMIT 1 FOR UPDATE"+how)
			require.NoError(t, err)
			return ids
		}
		first, second := begin(), begin()
		require.Equal(t, []int{1}, free(first, " SKIP LOCKED"))
		require.Empty(t, free(second, " SKIP LOCKED"), "three rows are free")

		// By the key only one row is locked: all four workers have a row of their own.
		require.NoError(t, first.Rollback())
		require.NoError(t, second.Rollback())
		var nested func(id int) error
		nested = func(id int) error {
			if id > 4 {
				return nil
			}
			return guard.LockRow(t.Context(), db, account(id), -1,
				func(context.Context, *sqlx.Tx) error { return nested(id + 1) })
		}
		require.NoError(t, nested(1))
	})
}

// The pitfall of an external call inside a transaction: the call happens although the
// transaction is rolled back, and again when the transaction is repeated. In two steps the row is free
// in the meantime, and the call happens once.
func TestTwoStep(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openAccounts(t, s)
		calls := 0
		lockedDuring := func() bool { // what others see while the call is under way
			err := guard.LockRow(t.Context(), db, account(1), -1, func(context.Context, *sqlx.Tx) error { return nil })
			return errors.Is(err, notify.ErrNotAcquired)
		}
		deadlock := &mysql.MySQLError{Number: 1213}
		failing := func() error { // the first transaction is a deadlock's victim
			if calls++; calls == 1 {
				return deadlock
			}
			return nil
		}
		require.NoError(t, guard.LockRow(t.Context(), db, account(1), 0, func(context.Context, *sqlx.Tx) error {
			require.True(t, lockedDuring())
			return failing()
		}))
		require.Equal(t, 2, calls, "a payment made twice")

		calls = 0
		var read []string
		finished := 0
		pay := guard.TwoStep{
			TTL: time.Minute,
			Begin: func(ctx context.Context, tx *sqlx.Tx) error {
				return tx.SelectContext(ctx, &read, "SELECT owner FROM `acc``ounts` WHERE id = 1 AND state = 'new'")
			},
			Call: func(ctx context.Context) error {
				calls++
				require.Equal(t, []string{"one"}, read)
				require.False(t, lockedDuring())
				err := guard.TwoStep{
					Call:   func(context.Context) error { calls++; return nil },
					Finish: func(context.Context, *sqlx.Tx) error { return nil },
				}.Do(ctx, db, account(1))
				require.ErrorIs(t, err, notify.ErrNotAcquired, "another one at the same row")
				return nil
			},
			Finish: func(ctx context.Context, tx *sqlx.Tx) error {
				if finished++; finished == 1 {
					return deadlock
				}
				_, err := tx.ExecContext(ctx, "UPDATE `acc``ounts` SET state = 'paid' WHERE id = 1")
				return err
			},
		}
		require.NoError(t, pay.Do(t.Context(), db, account(1)))
		require.Equal(t, 1, calls)
		require.Equal(t, 2, finished)
		require.Equal(t, "paid", mysqltest.Value[string](t, db.Pool(), "SELECT state FROM `acc``ounts` WHERE id = 1"))

		// A call that fails leaves the row unchanged, and free for the next one.
		no := errors.New("no")
		pay.Call = func(context.Context) error { return no }
		require.ErrorIs(t, pay.Do(t.Context(), db, account(2)), no)

		// Another holder got the lease in the meantime: Finish is rolled back.
		pay.Call = func(context.Context) error {
			mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_lease SET token = token + 1")
			return nil
		}
		mysqltest.Exec(t, db.Pool(), "UPDATE `acc``ounts` SET state = 'new'")
		err := pay.Do(t.Context(), db, account(1))
		require.ErrorIs(t, err, notify.ErrLockLost)
		require.Equal(t, "new", mysqltest.Value[string](t, db.Pool(), "SELECT state FROM `acc``ounts` WHERE id = 1"))

		// Another transaction keeps the row after the call: the call is not forgotten.
		config.Params = map[string]string{"innodb_lock_wait_timeout": "1"}
		impatient, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, impatient.Close()) }()
		other, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		pay.Call = func(ctx context.Context) error {
			_, err := other.ExecContext(ctx, "UPDATE `acc``ounts` SET state = 'held' WHERE id = 2")
			return err
		}
		err = pay.Do(t.Context(), impatient, account(2))
		require.ErrorIs(t, err, notify.ErrLockLost)
		require.NotErrorIs(t, err, notify.ErrNotAcquired)
		require.NoError(t, other.Rollback())

		// The lease was lost before the call: there was no call.
		calls = 0
		early := guard.TwoStep{
			TTL: 2 * time.Second,
			Begin: func(ctx context.Context, _ *sqlx.Tx) error {
				mysqltest.Exec(t, db.Pool(), "UPDATE mqnotify_lease SET token = token + 1")
				mysqltest.Await(t, ctx.Done(), "the loss")
				return context.Cause(ctx)
			},
			Call:   func(context.Context) error { calls++; return nil },
			Finish: func(context.Context, *sqlx.Tx) error { return nil },
		}
		err = early.Do(t.Context(), db, account(3))
		require.ErrorIs(t, err, notify.ErrNotAcquired)
		require.NotErrorIs(t, err, notify.ErrLockLost)
		require.Zero(t, calls)
	})
}
