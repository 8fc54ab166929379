package notify_test

import (
	"context"
	"database/sql"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// eachOwn runs f on an instance of its own of each server, with flags, and on one of
// MySQL with GTIDs besides.
func eachOwn(t *testing.T, flags []string, f func(t *testing.T, own *mysqltest.Server)) {
	t.Helper()
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		t.Run("plain", func(t *testing.T) {
			t.Parallel()
			f(t, s.Start(t, flags...))
		})
		if !s.IsMariaDB() {
			t.Run("GTID", func(t *testing.T) {
				t.Parallel()
				f(t, s.Start(t, slices.Concat(gtidFlags, flags)...))
			})
		}
	})
}

const waitsForTable = "Waiting for table metadata lock"

// begin begins a statement on a connection of its own, which waits 5 minutes at most for a
// table, and tells its end.
func begin(t *testing.T, admin *sql.DB, query string) (id uint64, ended <-chan error) {
	t.Helper()
	conn, err := admin.Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	_, err = conn.ExecContext(t.Context(), "SET SESSION lock_wait_timeout = 300")
	require.NoError(t, err)
	require.NoError(t, conn.QueryRowContext(t.Context(), "SELECT CONNECTION_ID()").Scan(&id))
	return id, mysqltest.Result(func() error {
		_, err := conn.ExecContext(context.Background(), query)
		return err
	})
}

// Parked listeners keep no ALTER TABLE waiting. One that waits for a long writer, and
// all that waits for it, hold up neither rings, nor who comes new, nor a change of
// keepers; and no statement of a gate waits for the table for longer than its
// lock_wait_timeout.
func TestGateAlter(t *testing.T) {
	if testing.Short() {
		t.Skip("waits for tables to be free; TestGateOfAnAccountThatMayNotLook keeps a gate whose table a keeper does not read")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := tidy(t, s)
		admin := s.Admin(t)
		makeTopic(t, openProcess(t, config))
		followers := []*follower{follow(t, config, watchful), follow(t, config, watchful)}
		db := openProcess(t, config)
		producer := openGate(t, db, "orders", watchful)
		require.NoError(t, producer.Join(t.Context()))
		awaitHandover(t, s, config)
		for _, alter := range []string{"ADD COLUMN one INT", "DROP COLUMN one, ALGORITHM=COPY"} {
			_, altered := begin(t, admin, "ALTER TABLE "+config.DBName+".orders "+alter)
			require.NoError(t, mysqltest.Receive(t, altered))
			for _, gate := range []*notify.Gate{producer, openGate(t, db, "others", watchful)} { // the second rings for nobody
				id := send(t, db, gate)
				for _, follower := range followers {
					follower.has(t, id)
				}
			}
		}

		listener, _ := listen(t, config)
		settle(t, listener)
		writer, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		defer func() { assert.ErrorIs(t, writer.Rollback(), sql.ErrTxDone) }()
		inserted, err := writer.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
		require.NoError(t, err)
		id, err := inserted.LastInsertId()
		require.NoError(t, err)
		alterer, altered := begin(t, admin, "ALTER TABLE "+config.DBName+".orders ADD COLUMN two INT")
		mysqltest.AwaitState(t, admin, alterer, waitsForTable)

		// How long our statements wait for the table, in whole seconds.
		ours := "STATE = '" + waitsForTable + "' AND ID <> ?"
		require.Eventually(t, func() bool {
			return len(sessions(t, admin, config, ours+" AND INFO LIKE '%IS_USED_LOCK%'", alterer)) > 0
		}, patience, tick, "a look waits")
		ring := func(gate *notify.Gate) {
			head := settle(t, listener)
			gate.Ring(0)
			woken(t, listener, head)
		}
		ring(producer)
		newcomer, head := listen(t, config)
		producer.Ring(0)
		woken(t, newcomer, head)
		before := holder(t, admin, gateLock(config, "keeper"))
		kill(t, admin, "CONNECTION", before)
		require.Eventually(t, func() bool { return holder(t, admin, gateLock(config, "keeper")) != before }, patience, tick)
		awaitHandover(t, s, config)
		keeper := holder(t, admin, gateLock(config, "keeper"))
		ring(producer)
		for begun := time.Now(); time.Since(begun) < 8*time.Second; {
			require.Empty(t, sessions(t, admin, config, ours+" AND TIME > 6 AND INFO LIKE '%IS_USED_LOCK%'", alterer))
			head := settle(t, listener)
			_, err := listener.Wait(t.Context(), head, 10*tick)
			require.NoError(t, err)
		}
		require.Equal(t, keeper, holder(t, admin, gateLock(config, "keeper")), "it keeps the gate without a look at the table")

		require.NoError(t, writer.Commit())
		require.NoError(t, mysqltest.Receive(t, altered))
		for _, follower := range followers {
			follower.has(t, id)
		}
		id = send(t, db, producer)
		for _, follower := range followers {
			follower.has(t, id)
		}
	})
}

// FLUSH TABLES, in each of its forms, waits for no listener and ends nothing. The
// server's own end, orderly or not, ends all sessions, and all come back.
func TestGateOfAServerThatRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("TestGateStressFaults has keepers and listeners that reconnect, TestLostWithTheServer has servers that end")
	}
	eachOwn(t, nil, func(t *testing.T, own *mysqltest.Server) {
		config := tidy(t, own)
		db := openProcess(t, config)
		makeTopic(t, db)
		followers := []*follower{follow(t, config, watchful), follow(t, config, watchful)}
		producer := openGate(t, db, "orders", watchful)
		bell := openGate(t, openProcess(t, config), "orders", watchful)
		joinAll(t, producer, bell)
		foreign := openGate(t, db, "others", watchful) // it rings for nobody
		everybodyGets := func(what string) {
			t.Helper()
			for _, gate := range []*notify.Gate{producer, bell, foreign} {
				id := send(t, db, gate)
				begun := time.Now()
				for _, follower := range followers {
					follower.has(t, id)
				}
				t.Log(what, "a row is read by all after", time.Since(begun))
			}
		}
		everybodyGets("at first")
		for _, flush := range []string{"FLUSH TABLES", "FLUSH TABLES " + config.DBName + ".orders WITH READ LOCK", "FLUSH TABLES WITH READ LOCK"} {
			conn, err := own.Admin(t).Conn(t.Context())
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), "SET SESSION lock_wait_timeout = 30")
			require.NoError(t, err)
			_, err = conn.ExecContext(t.Context(), flush)
			require.NoError(t, err)
			listener, _ := listen(t, config)
			head := settle(t, listener)
			bell.Ring(0)
			woken(t, listener, head)
			_, err = conn.ExecContext(t.Context(), "UNLOCK TABLES")
			require.NoError(t, err)
			require.NoError(t, conn.Close())
			everybodyGets("after " + flush)
		}
		for what, end := range map[string]func(){"a shutdown": own.Stop, "kill -9": own.Kill} {
			end()
			own.Restart(t)
			everybodyGets("after " + what)
		}
	})
}
