package mysqltest

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// counted is a Database that counts its queries.
type counted struct {
	Database
	queries atomic.Int64
}

func (c *counted) QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error) {
	c.queries.Add(1)
	return c.Database.QueryContext(ctx, query, args...)
}

func (c *counted) QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row {
	c.queries.Add(1)
	return c.Database.QueryRowContext(ctx, query, args...)
}

// While a session runs a statement with a character of four bytes, MySQL lists no sessions at all. Value and Values repeat
// their query until it does.
func TestSessionListIsRepeated(t *testing.T) {
	Each(t, func(t *testing.T, s *Server) {
		const list = "SELECT COALESCE(STATE, '') FROM information_schema.PROCESSLIST"
		db := &counted{Database: s.Admin(t)}
		lock := s.Database(t).DBName
		holder, waiter := connect(t, s), connect(t, s)
		id := Value[uint64](t, waiter, "SELECT CONNECTION_ID()")
		require.Equal(t, 1, Value[int](t, holder, "SELECT GET_LOCK(?, 0)", lock))
		ended := make(chan error, 1)
		go func() {
			_, err := waiter.ExecContext(t.Context(), "DO GET_LOCK(CONCAT('"+lock+"', LEFT('😀', 0)), 60), RELEASE_ALL_LOCKS()")
			ended <- err
		}()
		read := make(chan int, 2)
		Eventually(t, "the statement runs", func() bool {
			var state string
			err := db.QueryRowContext(t.Context(), list+" WHERE ID = ?", id).Scan(&state)
			return err == nil && state == WaitsForLock || isNumber(err, notText)
		})
		db.queries.Store(0)
		go func() { read <- Value[int](t, db, "SELECT COUNT(*) FROM ("+list+") l") }()
		go func() { read <- len(Values[string](t, db, list)) }()
		Eventually(t, "both queries were repeated, or answered", func() bool { return db.queries.Load() >= 10 || len(read) == 2 })
		Value[int](t, holder, "SELECT RELEASE_LOCK(?)", lock)
		require.NoError(t, <-ended)
		assert.Positive(t, <-read)
		assert.Positive(t, <-read)
	})
}

func connect(t *testing.T, s *Server) *sql.Conn {
	conn, err := s.Admin(t).Conn(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
