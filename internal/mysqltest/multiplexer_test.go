package mysqltest

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

const sessionsShared = 3

// one returns a connection of its own through the multiplexer.
func one(t *testing.T, m *Multiplexer, cfg *mysql.Config) *sql.Conn {
	t.Helper()
	conn, err := open(t, m.Config(cfg)).Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func do(t *testing.T, conn *sql.Conn, query string, args ...any) sql.Result {
	t.Helper()
	result, err := conn.ExecContext(t.Context(), query, args...)
	require.NoError(t, err, query)
	return result
}

func get[T any](t *testing.T, conn *sql.Conn, query string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, conn.QueryRowContext(t.Context(), query, args...).Scan(&v), query)
	return v
}

func requireNumber(t *testing.T, err error, number uint16) {
	t.Helper()
	var failure *mysql.MySQLError
	require.ErrorAs(t, err, &failure)
	require.Equal(t, number, failure.Number)
}

// The sessions take turns: a client's statement does not hold the lock that its previous statement took, and the lock outlives
// the client.
func TestMultiplexerTakesTurns(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		m := s.Multiplexer(t, sessionsShared)
		conn := one(t, m, cfg)
		var ids []uint64
		for range 2 * sessionsShared {
			ids = append(ids, get[uint64](t, conn, "SELECT CONNECTION_ID()"))
		}
		require.Equal(t, ids[:sessionsShared], ids[sessionsShared:], "in turn")
		for i := range sessionsShared - 1 {
			require.NotContains(t, ids[i+1:sessionsShared], ids[i])
		}

		name := "mq:" + cfg.DBName
		holder := ids[0]
		require.Equal(t, 1, get[int](t, conn, "SELECT GET_LOCK(?, 0)", name))
		require.Equal(t, 0, get[int](t, conn, "SELECT RELEASE_LOCK(?)", name))
		require.Equal(t, holder, get[uint64](t, conn, "SELECT IS_USED_LOCK(?)", name))
		require.NoError(t, conn.Close())
		require.Equal(t, holder, get[uint64](t, one(t, m, cfg), "SELECT IS_USED_LOCK(?)", name))
	})
}

func TestMultiplexerOnlyWhenBusy(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		m := s.Multiplexer(t, sessionsShared)
		m.OnlyWhenBusy()
		conn, other := one(t, m, cfg), one(t, m, cfg)
		id := get[uint64](t, conn, "SELECT CONNECTION_ID()")
		require.Equal(t, id, get[uint64](t, conn, "SELECT CONNECTION_ID()"))
		require.Equal(t, id, get[uint64](t, other, "SELECT CONNECTION_ID()"))

		name := holdLock(t, cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			_, err := other.ExecContext(ctx, "DO GET_LOCK(?, 60)", name)
			ended <- err
		}()
		waits := func() bool { return waitsForLock(t, s, id) }
		require.Eventually(t, waits, patience, tick)
		require.NotEqual(t, id, get[uint64](t, conn, "SELECT CONNECTION_ID()"))

		cancel() // the client disconnects, which ends its wait
		require.ErrorIs(t, <-ended, context.Canceled)
		require.Eventually(t, func() bool { return !waits() }, settleTime, tick)
		for range sessionsShared {
			require.NotEqual(t, id, get[uint64](t, conn, "SELECT CONNECTION_ID()"), "the canceled session has ended")
		}
	})
}

// Every kind of response reaches the client complete.
func TestMultiplexerResponses(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		cfg.MultiStatements = true
		conn := one(t, s.Multiplexer(t, sessionsShared), cfg)
		require.NoError(t, conn.PingContext(t.Context()))
		do(t, conn, "CREATE TABLE t (id BIGINT AUTO_INCREMENT PRIMARY KEY, text LONGBLOB, number INT) ENGINE=InnoDB")

		result := do(t, conn, "INSERT INTO t (text, number) VALUES ('', NULL), (NULL, 7)")
		last, err := result.LastInsertId()
		require.NoError(t, err)
		require.EqualValues(t, 1, last)
		affected, err := result.RowsAffected()
		require.NoError(t, err)
		require.EqualValues(t, 2, affected)

		for _, id := range []int64{1 << 11, 1 << 19, 1 << 40} { // larger ids take more bytes in front of the status
			last, err := do(t, conn, "INSERT INTO t (id) VALUES (?)", id).LastInsertId()
			require.NoError(t, err)
			require.Equal(t, id, last)
			do(t, conn, "DO 1; DELETE FROM t WHERE id = LAST_INSERT_ID(?); DO 2", id)
		}

		rows, err := conn.QueryContext(t.Context(),
			"SELECT number, text FROM t ORDER BY id; INSERT INTO t (number) VALUES (3); SELECT 'x' FROM t WHERE FALSE; SELECT 'last'")
		require.NoError(t, err)
		defer func() { require.NoError(t, rows.Close()) }()
		var first, second struct {
			number sql.NullInt64
			text   sql.NullString
		}
		require.True(t, rows.Next())
		require.NoError(t, rows.Scan(&first.number, &first.text))
		require.Equal(t, sql.NullString{Valid: true}, first.text)
		require.False(t, first.number.Valid)
		require.True(t, rows.Next())
		require.NoError(t, rows.Scan(&second.number, &second.text))
		require.Equal(t, sql.NullInt64{Int64: 7, Valid: true}, second.number)
		require.False(t, second.text.Valid)
		require.False(t, rows.Next())
		require.True(t, rows.NextResultSet())
		require.False(t, rows.Next(), "WHERE FALSE finds no row")
		require.True(t, rows.NextResultSet())
		require.True(t, rows.Next())
		var text string
		require.NoError(t, rows.Scan(&text))
		require.Equal(t, "last", text)
		require.False(t, rows.Next())
		require.False(t, rows.NextResultSet())
		require.NoError(t, rows.Err())

		_, err = conn.ExecContext(t.Context(), "INSERT INTO t (id) VALUES (1)")
		requireNumber(t, err, 1062) // duplicate
		_, err = conn.ExecContext(t.Context(), "DO 1; SELECT no_such FROM t")
		requireNumber(t, err, 1054)                           // unknown column
		_, err = conn.PrepareContext(t.Context(), "SELECT 1") //nolint:sqlclosecheck // it prepares none
		requireNumber(t, err, 1047)                           // unknown command
		require.Equal(t, 3, get[int](t, conn, "SELECT COUNT(*) FROM t"), "the connection still works")
	})
}

// The multiplexer does not offer compression and TLS, which it can't forward, even if the server does.
func TestMultiplexerOffers(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		m := s.Multiplexer(t, sessionsShared)
		compressed := cfg.Clone()
		require.NoError(t, compressed.Apply(mysql.EnableCompression(true)))
		require.NoError(t, open(t, m.Config(compressed)).PingContext(t.Context()))

		encrypted := cfg.Clone()
		encrypted.TLSConfig = "skip-verify"
		require.ErrorIs(t, open(t, m.Config(encrypted)).PingContext(t.Context()), mysql.ErrNoTLS)
	})
}

// A message of several packets arrives, and so does one that fills its packet to the last byte.
func TestMultiplexerLongMessages(t *testing.T) {
	NotShort(t, "TestMultiplexerResponses")
	Each(t, func(t *testing.T, shared *Server) {
		s := shared.Start(t, "--max-allowed-packet=64M")
		cfg := s.Database(t)
		conn := one(t, s.Multiplexer(t, 1), cfg)
		const prefix = 4 // bytes of the length of the row's only value
		for _, size := range []int{fullPacket - prefix, 2*fullPacket + 1} {
			require.Len(t, get[string](t, conn, fmt.Sprintf("SELECT REPEAT(x'fe', %d)", size)), size)
		}
		const rest = len("\x03SELECT LENGTH('')")
		for _, size := range []int{fullPacket, 2*fullPacket + 1} {
			query := "SELECT LENGTH('" + strings.Repeat("x", size-rest) + "')"
			require.Equal(t, size-rest, get[int](t, conn, query))
		}
	})
}

// Each client keeps its own default database, in every session.
func TestMultiplexerDatabase(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg, other := s.Database(t), s.Database(t)
		m := s.Multiplexer(t, sessionsShared)
		none := cfg.Clone()
		none.DBName = ""
		clients := map[*sql.Conn]string{one(t, m, cfg): cfg.DBName, one(t, m, other): other.DBName, one(t, m, none): ""}
		moved := one(t, m, cfg)
		do(t, moved, "use `"+other.DBName+"`")
		clients[moved] = other.DBName
		_, err := moved.ExecContext(t.Context(), "USE no_such_database")
		requireNumber(t, err, 1049)
		for range 2 * sessionsShared {
			for conn, name := range clients {
				require.Equal(t, name, get[sql.NullString](t, conn, "SELECT DATABASE()").String)
			}
		}

		nowhere := cfg.Clone()
		nowhere.DBName = "no_such_database"
		_, err = one(t, m, nowhere).ExecContext(t.Context(), "DO 1")
		requireNumber(t, err, 1049)
	})
}

// The multiplexer replaces idle sessions that the server has ended, and no client gets an error.
func TestMultiplexerReplacesSessions(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		conn := one(t, s.Multiplexer(t, sessionsShared), cfg)
		var killed []uint64
		for range sessionsShared {
			id := get[uint64](t, conn, "SELECT CONNECTION_ID()")
			killed = append(killed, id)
			_, err := s.pool(t).ExecContext(t.Context(), fmt.Sprintf("KILL %d", id))
			require.NoError(t, err)
			require.Eventually(t, func() bool { // until it has ended
				return number(t, s.pool(t), fmt.Sprintf("SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %d", id)) == 0
			}, patience, tick)
		}
		for range sessionsShared {
			require.NotContains(t, killed, get[uint64](t, conn, "SELECT CONNECTION_ID()"))
		}
		do(t, conn, "SET SESSION wait_timeout = 1")
		require.Eventually(t, func() bool {
			return number(t, s.pool(t), "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = '"+cfg.DBName+"'") < sessionsShared
		}, patience, tick)
		for range sessionsShared {
			do(t, conn, "DO 1")
		}
	})
}

// When a session ends during a statement, that statement fails, and no other client gets an error.
func TestMultiplexerLosesSession(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		cfg := s.Database(t)
		m := s.Multiplexer(t, sessionsShared)
		m.OnlyWhenBusy()
		waiter, other := one(t, m, cfg), one(t, m, cfg)
		id := get[uint64](t, waiter, "SELECT CONNECTION_ID()")
		name := holdLock(t, cfg)
		ended := make(chan error, 1)
		go func() {
			_, err := waiter.ExecContext(t.Context(), "DO GET_LOCK(?, 60)", name)
			ended <- err
		}()
		require.Eventually(t, func() bool { return waitsForLock(t, s, id) }, patience, tick)
		do(t, other, "DO 1")
		_, err := s.pool(t).ExecContext(t.Context(), fmt.Sprintf("KILL %d", id))
		require.NoError(t, err)
		require.Error(t, <-ended)
		for range sessionsShared {
			do(t, other, "DO 1")
		}
	})
}

// holdLock holds an advisory lock until the test's end, and returns its name.
func holdLock(t *testing.T, cfg *mysql.Config) string {
	t.Helper()
	conn, err := open(t, cfg).Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	name := "mq:" + cfg.DBName
	require.Equal(t, 1, get[int](t, conn, "SELECT GET_LOCK(?, 0)", name))
	return name
}

func waitsForLock(t *testing.T, s *Server, id uint64) bool {
	t.Helper()
	return number(t, s.pool(t), fmt.Sprintf(
		"SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE ID = %d AND STATE = 'User lock'", id)) == 1
}
