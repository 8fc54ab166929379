package core_test

import (
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// BenchmarkSession measures what a session adds to a statement.
func BenchmarkDo(b *testing.B) {
	mysqltest.EachB(b, func(b *testing.B, s *mysqltest.Server) {
		db := openDB(b, s.Database(b))
		var one int
		b.Run("session", func(b *testing.B) {
			session := openSession(b, db, 0)
			for b.Loop() {
				require.NoError(b, session.Do(b.Context(), func(conn *sqlx.Conn) error {
					return conn.QueryRowxContext(b.Context(), "SELECT 1").Scan(&one)
				}))
			}
		})
		b.Run("bare connection", func(b *testing.B) {
			conn, err := db.Pool().Connx(b.Context())
			require.NoError(b, err)
			for b.Loop() {
				require.NoError(b, conn.QueryRowxContext(b.Context(), "SELECT 1").Scan(&one))
			}
			require.NoError(b, conn.Close())
		})
	})
}
