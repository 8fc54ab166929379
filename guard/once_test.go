package guard_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

const mails = "CREATE TABLE `ma``ils` (id BIGINT UNSIGNED PRIMARY KEY, `sent at` DATETIME(6), body TEXT, mark CHAR(26))"

func onceInMails(tb testing.TB, db *notify.DB, taker string) *guard.Once {
	tb.Helper()
	once, err := guard.NewOnce(db, guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at", Taker: taker})
	require.NoError(tb, err)
	return once
}

// One caller gets through, whether the connection counts changed or found rows; on the
// table of `mqnotify init`, on a user's own, and inside a transaction.
func TestOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			mysqltest.Exec(t, db.Pool(), mails)
			mysqltest.Exec(t, db.Pool(), "INSERT INTO `ma``ils` (id) VALUES (7), (18446744073709551615)")
			for name, test := range map[string]struct {
				once *guard.Once
				key  any
			}{
				"ready":    {readyOnce(db), "a 'key' with \\ and ☃"},
				"own":      {onceInMails(t, db, ""), 7},
				"ownTaker": {onceInMails(t, db, "mark"), "18446744073709551615"},
			} {
				through := func(want bool) {
					t.Helper()
					got, err := test.once.Try(t.Context(), test.key)
					require.NoError(t, err, name)
					require.Equal(t, want, got, name)
				}
				reset, err := test.once.Reset(t.Context(), test.key)
				require.NoError(t, err)
				require.False(t, reset, name)
				through(true)
				through(false)
				through(false)
				reset, err = test.once.Reset(t.Context(), test.key)
				require.NoError(t, err)
				require.True(t, reset, name)
				through(true)
				through(false)
			}
		})
	})
}

// Inside a transaction the row is done if it commits, and not otherwise; other callers wait.
func TestOnceTx(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			once := readyOnce(db)
			begin := func() *sqlx.Tx {
				tx, err := db.Pool().BeginTxx(t.Context(), nil)
				require.NoError(t, err)
				t.Cleanup(func() { _ = tx.Rollback() })
				return tx
			}
			tx := begin()
			through, err := once.TryTx(t.Context(), tx, "k")
			require.NoError(t, err)
			require.True(t, through)
			other := mysqltest.Result(func() bool {
				through, err := once.Try(t.Context(), "k")
				return assert.NoError(t, err) && through
			})
			require.Eventually(t, func() bool { return updating(t, db) == 1 }, patience, tick, "it waits for the transaction")
			require.NoError(t, tx.Rollback())
			require.True(t, mysqltest.Receive(t, other))

			// A transaction whose snapshot is older than the change of another one.
			mysqltest.Exec(t, db.Pool(), "INSERT INTO mqnotify_once (once_key) VALUES ('old')")
			tx = begin()
			var n int
			require.NoError(t, tx.Get(&n, "SELECT COUNT(*) FROM mqnotify_once"))
			through, err = once.Try(t.Context(), "old")
			require.NoError(t, err)
			require.True(t, through)
			through, err = once.TryTx(t.Context(), tx, "old")
			require.False(t, through)
			if err != nil { // MariaDB 11.8 refuses to look past a snapshot: the caller begins again
				require.NoError(t, tx.Rollback())
				tx = begin()
				through, err = once.TryTx(t.Context(), tx, "old")
				require.NoError(t, err)
				require.False(t, through)
			}
			_, err = once.TryTx(t.Context(), db.Pool(), "k")
			require.ErrorIs(t, err, notify.ErrOptions)
		})
	})
}

// A caller that loses the connection during Try finds out whether it got through if the
// table stores the taker. Otherwise the error says that this is unknown.
func TestOnceConnectionLost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		direct := openDB(t, config)
		require.NoError(t, schema.Init(t.Context(), direct.Pool()))
		proxy := s.Proxy(t)
		db := openDB(t, proxy.Config(config))
		mysqltest.Exec(t, direct.Pool(), mails)
		mysqltest.Exec(t, direct.Pool(), "INSERT INTO `ma``ils` (id) VALUES (1), (2)")
		for key, once := range map[string]*guard.Once{
			"ready": readyOnce(db), "1": onceInMails(t, db, "mark"), "2": onceInMails(t, db, ""),
		} {
			_, err := once.Reset(t.Context(), key) // connected, and the table known
			require.NoError(t, err)
			// The statement waits for the row until the connection is cut, and then continues.
			lock, err := direct.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			if key == "ready" {
				_, err = lock.Exec("INSERT IGNORE INTO mqnotify_once (once_key) VALUES ('ready')")
				require.NoError(t, err)
			}
			_, err = lock.Exec("SELECT * FROM mqnotify_once FOR UPDATE")
			require.NoError(t, err)
			_, err = lock.Exec("SELECT * FROM `ma``ils` FOR UPDATE")
			require.NoError(t, err)
			type answer struct {
				through bool
				err     error
			}
			tried := mysqltest.Result(func() answer {
				through, err := once.Try(t.Context(), key)
				return answer{through, err}
			})
			require.Eventually(t, func() bool { return updating(t, direct) > 0 }, patience, tick)
			proxy.Freeze() // its answer does not arrive
			require.NoError(t, lock.Commit())
			done := "SELECT COUNT(*) FROM mqnotify_once WHERE done_at IS NOT NULL"
			if key != "ready" {
				done = "SELECT COUNT(*) FROM `ma``ils` WHERE `sent at` IS NOT NULL AND id = " + key
			}
			require.Eventually(t, func() bool { return mysqltest.Value[int](t, direct.Pool(), done) == 1 }, patience, tick)
			proxy.Down()
			proxy.Up()
			got := mysqltest.Receive(t, tried)
			if key == "2" {
				require.Error(t, got.err)
				require.False(t, got.through)
			} else {
				require.NoError(t, got.err)
				require.True(t, got.through, "the very attempt that got through, %s", key)
			}
			again, err := once.Try(t.Context(), key)
			require.NoError(t, err)
			require.False(t, again)
		}
	})
}

// updating returns the sessions in the database that run an UPDATE. An UPDATE that the server still lists for a moment after its
// answer is in another state.
func updating(t *testing.T, db *notify.DB) int {
	t.Helper()
	return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE 'UPDATE%' AND STATE = 'updating'")
}

func TestOnceRefuses(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		mysqltest.Exec(t, db.Pool(), mails)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE odd (a INT NOT NULL, b VARCHAR(20), price DECIMAL(9,2) UNIQUE, c DATETIME NOT NULL, d DATETIME, PRIMARY KEY (a, b), UNIQUE KEY (b))")
		try := func(table guard.OnceTable, key any) error {
			once, err := guard.NewOnce(db, table)
			require.NoError(t, err)
			_, err = once.Try(t.Context(), key)
			return err
		}
		for _, test := range []struct {
			table guard.OnceTable
			key   any
			says  string
		}{
			{guard.OnceTable{Table: "odd", Key: "a", Time: "d"}, 1, "UNIQUE KEY"},
			{guard.OnceTable{Table: "odd", Key: "price", Time: "d"}, 1, "decimal"},
			{guard.OnceTable{Table: "odd", Key: "b", Time: "c"}, "x", "NOT NULL"},
			{guard.OnceTable{Table: "odd", Key: "b", Time: "e"}, "x", "no column `e`"},
			{guard.OnceTable{Table: "even", Key: "b", Time: "e"}, "x", "`even`"},
			{guard.OnceTable{Table: "odd", Key: "b", Time: "d"}, 0, "holds strings"},
			{guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at"}, "7x", "holds integers"},
			{guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at"}, []byte("7"), "holds integers"},
			{guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at"}, 7.0, "float64"},
		} {
			err := try(test.table, test.key)
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, test.says)
		}
		require.ErrorIs(t, try(guard.OnceTable{Table: "ma`ils", Key: "id", Time: "sent at"}, 8), guard.ErrNoRow)

		var invalid *ident.InvalidError
		_, err := guard.NewOnce(db, guard.OnceTable{Table: "t", Key: "k "})
		require.ErrorAs(t, err, &invalid)
		for _, key := range []string{"", "x ", "a\x00b", "\xff", strings.Repeat("ä", 256)} {
			_, err := readyOnce(db).Try(t.Context(), key)
			require.ErrorIs(t, err, notify.ErrOptions, key)
		}
		_, err = readyOnce(db).Try(t.Context(), strings.Repeat("☃", 255))
		require.NoError(t, err)

		other := openDB(t, s.Database(t))
		_, err = readyOnce(other).Try(t.Context(), "k")
		require.ErrorIs(t, err, notify.ErrNoState)
		require.ErrorContains(t, err, "mqnotify init")

		ended, cancel := context.WithCancelCause(t.Context())
		cancel(errors.New("enough"))
		_, err = readyOnce(db).Try(ended, "k")
		require.ErrorContains(t, err, "enough")
	})
}
