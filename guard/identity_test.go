package guard_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// calling is a TwoStep that only calls.
func calling(call func(ctx context.Context) error) guard.TwoStep {
	return guard.TwoStep{TTL: time.Minute, Call: call, Finish: func(context.Context, *sqlx.Tx) error { return nil }}
}

// A row has one lease, by whichever unique key a caller names it, in whichever spelling
// the column takes as the same, and whatever the session's settings are.
func TestTwoStepOneLeaseARow(t *testing.T) {
	const german = "VARCHAR(20) CHARACTER SET utf8mb4 COLLATE utf8mb4_unicode_ci"
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := openState(t, s)
		config = config.Clone()
		config.Params = map[string]string{"time_zone": "'+05:00'", "sql_mode": "'PAD_CHAR_TO_FULL_LENGTH'"}
		abroad := openDB(t, config)
		row := func(table, key string, value any) guard.RowRef {
			return guard.RowRef{Table: table, Key: key, Value: value}
		}
		for _, test := range []struct {
			table       string
			same, other []guard.RowRef
		}{
			{
				"people (id INT PRIMARY KEY, name " + german + " UNIQUE) SELECT 7 AS id, 'Müller' AS name UNION SELECT 8, 'Meier'",
				[]guard.RowRef{
					row("people", "id", 7), row("people", "id", "07"), row("people", "ID", uint8(7)),
					row("people", "name", "Müller"), row("people", "name", "muller"), row("people", "name", []byte("MÜLLER")),
				},
				[]guard.RowRef{row("people", "id", 8), row("people", "name", "MEIER")},
			},
			{ // no primary key: by the key that was given
				"nicknames (name " + german + " UNIQUE) SELECT 'Müller' AS name UNION SELECT 'Meier'",
				[]guard.RowRef{row("nicknames", "name", "Müller"), row("nicknames", "Name", "muller")},
				[]guard.RowRef{row("nicknames", "name", "meier")},
			},
			{ // none either, but keys that could be
				"badges (code VARCHAR(3) NOT NULL UNIQUE, n INT NOT NULL UNIQUE) SELECT 'a' AS code, 1 AS n UNION SELECT 'b', 2",
				[]guard.RowRef{row("badges", "code", "A"), row("badges", "n", 1)},
				[]guard.RowRef{row("badges", "n", 2)},
			},
			{
				"stays (arrived TIMESTAMP(6) NOT NULL, room CHAR(4), guest VARBINARY(9), n INT UNIQUE, PRIMARY KEY (room, arrived, guest))" +
					" SELECT UTC_TIMESTAMP(6) AS arrived, '1a' AS room, X'00FF' AS guest, 1 AS n UNION SELECT UTC_TIMESTAMP(6), '1a', X'00FE', 2",
				[]guard.RowRef{row("stays", "n", 1)},
				[]guard.RowRef{row("stays", "n", 2)},
			},
		} {
			mysqltest.Exec(t, db.Pool(), "CREATE TABLE "+test.table)
			for _, first := range test.same {
				calls := 0
				err := calling(func(ctx context.Context) error {
					calls++
					for _, same := range test.same {
						err := calling(func(context.Context) error { calls++; return nil }).Do(ctx, abroad, same)
						require.ErrorIs(t, err, notify.ErrNotAcquired, "%v during %v", same, first)
					}
					for _, other := range test.other {
						require.NoError(t, calling(func(context.Context) error { return nil }).Do(ctx, abroad, other), "%v during %v", other, first)
					}
					return nil
				}).Do(t.Context(), db, first)
				require.NoError(t, err, first)
				require.Equal(t, 1, calls, first)
			}
		}
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_lease WHERE name = 'row people 7'"))
		err := calling(func(context.Context) error { return nil }).Do(t.Context(), db, row("people", "id", 9))
		require.ErrorIs(t, err, guard.ErrNoRow)
	})
}

// If the key names another row than the one whose lease was taken, nothing is done to
// that row.
func TestTwoStepOtherRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE people (id INT PRIMARY KEY, name VARCHAR(20) UNIQUE)")
		mysqltest.Exec(t, db.Pool(), "INSERT INTO people VALUES (1, 'Anna')")
		never := func(context.Context, *sqlx.Tx) error { return errors.New("it ran") }
		anna := guard.RowRef{Table: "people", Key: "name", Value: "Anna"}
		for _, change := range []string{
			"UPDATE people SET id = id + 1",
			"REPLACE INTO people SELECT id + 1, name FROM people",
		} {
			err := guard.TwoStep{Call: func(context.Context) error { mysqltest.Exec(t, db.Pool(), change); return nil }, Finish: never}.Do(t.Context(), db, anna)
			require.ErrorIs(t, err, notify.ErrLockLost, change)
		}

		// This happens between the read of the row and the lease, which waits here.
		lease, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { _ = lease.Rollback() }()
		// Without INTO, because the server may list a statement for a moment after its answer, and the wait below is for another's.
		_, err = lease.Exec("INSERT mqnotify_lease (name, token, taker, taken_at) VALUES ('row people 3', 1, '', UTC_TIMESTAMP(6))")
		require.NoError(t, err)
		done := mysqltest.Result(func() error {
			return guard.TwoStep{Begin: never, Call: func(context.Context) error { return errors.New("it ran") }, Finish: never}.Do(t.Context(), db, anna)
		})
		require.Eventually(t, func() bool { return waiting(t, db, "INSERT INTO mqnotify_lease%") > 0 }, patience, tick)
		mysqltest.Exec(t, db.Pool(), "UPDATE people SET id = 9")
		require.NoError(t, lease.Commit())
		require.ErrorIs(t, mysqltest.Receive(t, done), notify.ErrNotAcquired)
	})
}

// waiting returns the sessions in the database whose statement matches.
func waiting(t *testing.T, db *notify.DB, statement string) int {
	t.Helper()
	return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND INFO LIKE ?", statement)
}

// Engines without row locks exclude no session and roll nothing back, so they are refused where
// that matters.
func TestEngines(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openState(t, s)
		engines := []string{"MyISAM", "MEMORY"}
		if s.IsMariaDB() {
			engines = append(engines, "Aria")
		}
		never := func(context.Context, *sqlx.Tx) error { return errors.New("it ran") }
		for _, engine := range engines {
			mysqltest.Exec(t, db.Pool(), "CREATE TABLE `a``"+engine+"` (id INT PRIMARY KEY, done DATETIME) ENGINE="+engine)
			mysqltest.Exec(t, db.Pool(), "INSERT INTO `a``"+engine+"` (id) VALUES (1)")
			row := guard.RowRef{Table: "a`" + engine, Key: "id", Value: 1}
			once, err := guard.NewOnce(db, guard.OnceTable{Table: row.Table, Key: "id", Time: "done"})
			require.NoError(t, err)
			for _, err := range []error{
				guard.LockRow(t.Context(), db, row, 0, never),
				guard.TwoStep{Call: func(context.Context) error { return errors.New("it ran") }, Finish: never}.Do(t.Context(), db, row),
				inTx(t, db, func(tx notify.Tx) error { _, err := once.TryTx(t.Context(), tx, 1); return err }),
			} {
				require.ErrorIs(t, err, notify.ErrOptions, engine)
				require.ErrorContains(t, err, "ALTER TABLE `a``"+engine+"` ENGINE=InnoDB")
			}
			through, err := once.Try(t.Context(), 1)
			require.NoError(t, err)
			require.True(t, through, "one statement is enough for it")
		}
	})
}

// A transaction that has the pool's only connection needs no other one, even while other callers
// wait for it.
func TestOneConnection(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		bothCounts(t, s, func(t *testing.T, db *notify.DB, _ *mysql.Config) {
			mysqltest.Exec(t, db.Pool(), mails)
			mysqltest.Exec(t, db.Pool(), "INSERT INTO `ma``ils` (id) VALUES (1), (2)")
			once := onceInMails(t, db, "")
			db.Pool().SetMaxOpenConns(1)
			tx, err := db.Pool().BeginTxx(t.Context(), nil)
			require.NoError(t, err)
			defer func() { _ = tx.Rollback() }()
			other := mysqltest.Result(func() error {
				_, err := once.Try(t.Context(), 2) // the first to ask what the table is
				return err
			})
			require.Eventually(t, func() bool { return db.Pool().Stats().WaitCount > 0 }, patience, tick)
			ctx := shortly(t, patience)
			through, err := once.TryTx(ctx, tx, 1)
			require.NoError(t, err)
			require.True(t, through)
			claimed, err := guard.NewClaims(db).ClaimTx(ctx, tx, "k")
			require.NoError(t, err)
			require.True(t, claimed)
			require.NoError(t, tx.Commit())
			require.NoError(t, mysqltest.Receive(t, other))

			// The other guards also need only one.
			require.NoError(t, guard.LockRow(ctx, db, guard.RowRef{Table: "ma`ils", Key: "id", Value: 1}, patience,
				func(ctx context.Context, tx *sqlx.Tx) error {
					_, err := readyOnce(db).TryTx(ctx, tx, "k")
					return err
				}))
			require.NoError(t, calling(func(context.Context) error { return nil }).Do(ctx, db,
				guard.RowRef{Table: "ma`ils", Key: "id", Value: 1}))
			require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM "+schema.LeaseTable))
		})
	})
}
