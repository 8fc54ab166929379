package consumer

import (
	"context"
	"strings"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// awkward are names that servers accept, and that break a statement without quotes.
var awkward = []string{
	"a`b", "it's", `say "x"`, `back\slash`, "two words", "größe", "注文", "semi;colon", "-- comment", "/* x */", "%s ? :name", "SELECT",
	"x`; DROP TABLE orders; -- ", "0", strings.Repeat("n", 64), strings.Repeat("ü", 64), "a.b", "@x", "tab\tbed",
}

// Names are quoted wherever they are used, and never run as SQL.
func TestAwkwardNames(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.DBName += " `; x'ü\""
		admin := s.Admin(t)
		_, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+ident.Quote(config.DBName))
		require.NoError(t, err)
		defer func() {
			_, err := admin.ExecContext(context.WithoutCancel(t.Context()), "DROP DATABASE "+ident.Quote(config.DBName))
			require.NoError(t, err)
		}()
		db, err := notify.OpenConfig(config)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		var names []string
		for _, name := range awkward {
			if name = strings.TrimSpace(name); ident.Check(name) == nil {
				names = append(names, name)
			}
		}
		require.Greater(t, len(names), 15)
		if testing.Short() {
			names = names[:5]
		}
		require.NoError(t, schema.Init(t.Context(), db.Pool(), append([]string{"orders"}, names...)...))
		for _, name := range names {
			insert(t, db, name, "one")
			options := Options{Group: name, Member: name, From: "beginning", StopAtEnd: true, MaxAttempts: 1}
			var got []Message
			require.NoError(t, run(t, db, name, options, EachTx(func(_ context.Context, _ *sqlx.Tx, m Message) error {
				got = append(got, m)
				return errHandler
			})).wait(t), name)
			require.Len(t, got, 1)
			require.Equal(t, name, got[0].Topic)
			require.Equal(t, uint64(1), mysqltest.Value[uint64](t, db.Pool(), "SELECT settled FROM mqnotify_offset WHERE topic = ? AND group_name = ?", name, name))
			require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter WHERE topic = ? AND group_name = ?", name, name))
			require.LessOrEqual(t, len(groupLock(db.Name(), name, name)), 64)

			// Use it as a column: the key, a selected column, and the time.
			column := ident.Quote(name)
			do(t, db, "CREATE TABLE rows_of ("+column+" BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, x INT)", "INSERT INTO rows_of (x) VALUES (7)")
			require.Equal(t, []uint64{1}, consumed(t, db, "rows_of", Options{From: "last 1", Key: name, Columns: []string{name}}), name)
			do(t, db, "DROP TABLE rows_of", "CREATE TABLE rows_of (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, "+column+" DATETIME)", "INSERT INTO rows_of VALUES (1, NOW())")
			if !strings.EqualFold(name, "id") {
				require.Equal(t, []uint64{1}, consumed(t, db, "rows_of", Options{From: "1000h", TimeColumn: name}), name)
			}
			do(t, db, "DROP TABLE rows_of")
		}
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = ? AND TABLE_NAME = 'orders'", db.Name()))
	})
}

// A gap in a table with an awkward name settles by every way.
func awkwardNameWithGaps(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	const topic = "it`s 'Ünïcode'"
	db := openConfig(t, s.Database(t), topic)
	polls := newPolls()
	var got collected
	c := run(t, db, topic, Options{From: "beginning", Writers: writers, wrap: polls.wrap}, got.handler())
	conn := newConn(t, db)
	onConn(t, conn, "START TRANSACTION", "INSERT INTO "+ident.Quote(topic)+" (payload) VALUES ('late')")
	insert(t, db, topic, "two")
	got.waitFor(t, "two")
	polls.wait(t)
	onConn(t, conn, "COMMIT")
	got.waitFor(t, "two", "late")
	require.NoError(t, c.end(t))
}
