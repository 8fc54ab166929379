package schema

import (
	"context"
	"database/sql"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

func TestMain(m *testing.M) { mysqltest.Main(m) }

func open(tb testing.TB, config *mysql.Config) *sql.DB {
	tb.Helper()
	connector, err := mysql.NewConnector(config)
	require.NoError(tb, err)
	db := sql.OpenDB(connector)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

func exec(tb testing.TB, db Conn, query string, args ...any) {
	tb.Helper()
	_, err := db.ExecContext(context.Background(), query, args...)
	require.NoError(tb, err, query)
}

func text(tb testing.TB, db Conn, query string, args ...any) (s string) {
	tb.Helper()
	require.NoError(tb, db.QueryRowContext(context.Background(), query, args...).Scan(&s), query)
	return s
}

// odd are names that a statement must quote correctly.
var odd = []string{
	"orders", "o`rders", "``", `o"rders`, "o'rders", `o''r\d'e\'rs`, `\`, "two words", "per%cent", "{topic}", "{name}",
	"größe", "注文", "-- comment", "/* comment", "a;b", "a;\nb", "a\n--b\nc", "a\r\nb", "a;\n-- b;\nc;", "?", "sele\tct",
	"'; DROP TABLE mqnotify_flag; -- x", "`; DROP TABLE mqnotify_flag; -- x", "1", "a.b",
	"sixty-four characters, spaces, umlauts (äöü) and a full stop too",
	"ääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääääää",
}
