package table

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

var _, _, _, _ Queryer = (*sql.DB)(nil), (*sql.Conn)(nil), (*sqlx.DB)(nil), (*sqlx.Conn)(nil)

func TestMain(m *testing.M) { mysqltest.Main(m) }

// open returns a session with the settings of the readers of tables.
func open(t testing.TB, cfg *mysql.Config) *sql.Conn {
	t.Helper()
	cfg = cfg.Clone()
	cfg.Params = map[string]string{"time_zone": "'+00:00'"}
	connector, err := mysql.NewConnector(cfg)
	require.NoError(t, err)
	db := sql.OpenDB(connector)
	t.Cleanup(func() { db.Close() })
	conn, err := db.Conn(testContext(t))
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func describe(t testing.TB, q Queryer, name string) *Table {
	t.Helper()
	table, err := Describe(testContext(t), q, database(t, q), name)
	require.NoError(t, err)
	return table
}

// database returns the session's default database.
func database(t testing.TB, q Queryer) (name string) {
	t.Helper()
	err := each(testContext(t), q, func(rows *sql.Rows) error { return rows.Scan(&name) }, "SELECT DATABASE()")
	require.NoError(t, err)
	return name
}
