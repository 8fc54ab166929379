package doctor

import (
	"context"
	"database/sql/driver"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// TestMain gives the servers another time zone than the sessions have, so that an age that mixes the two fails a test.
func TestMain(m *testing.M) {
	if err := os.Setenv("TZ", "Asia/Tokyo"); err != nil {
		panic(err)
	}
	mysqltest.Main(m)
}

// prompt is a timeout that only a server that hangs exceeds.
const prompt = 15 * time.Second

func open(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// initialised makes a database with the tables of `mqnotify init orders`.
func initialised(tb testing.TB, s *mysqltest.Server) (*mysql.Config, *notify.DB) {
	tb.Helper()
	config := s.Database(tb)
	db := open(tb, config)
	require.NoError(tb, schema.Init(tb.Context(), db.Pool(), "orders"))
	require.NoError(tb, wake.InstallAll(tb.Context(), db, slog.New(slog.DiscardHandler)))
	return config, db
}

// session returns one connection and closes it at the end of the test, which ends its transaction.
func session(tb testing.TB, db *notify.DB) *sqlx.Conn {
	tb.Helper()
	conn, err := db.Pool().Connx(tb.Context())
	require.NoError(tb, err)
	tb.Cleanup(func() { conn.Close() })
	return conn
}

// discard closes a connection whose session the pool must not use again.
func discard(conn *sqlx.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	conn.Close()
}

// findings are the results of an examination.
type findings []Result

func examine(tb testing.TB, db *notify.DB, topics ...string) findings {
	tb.Helper()
	return examineWith(tb, db, Options{Topics: topics, Timeout: time.Minute}) // a check may take 10 s on a busy machine
}

func examineWith(tb testing.TB, db *notify.DB, options Options) findings {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), 2*time.Minute)
	defer cancel()
	all := findings(slices.Collect(Examine(ctx, db, options)))
	require.NoError(tb, ctx.Err())
	require.NotEmpty(tb, all)
	return all
}

// of returns the results of a check.
func (f findings) of(check string) findings {
	return slices.DeleteFunc(slices.Clone(f), func(r Result) bool { return r.Check != check })
}

// only returns the result of a check that has exactly one.
func (f findings) only(tb testing.TB, check string) Result {
	tb.Helper()
	of := f.of(check)
	require.Len(tb, of, 1, "%v", f)
	return of[0]
}

func (f findings) worse() findings {
	return slices.DeleteFunc(slices.Clone(f), func(r Result) bool { return r.Level == OK })
}

func (f findings) String() string {
	var lines []string
	for _, r := range f {
		lines = append(lines, strings.Join([]string{string(r.Level), r.Topic, r.Check, r.Text, "->", r.Remedy}, " "))
	}
	return strings.Join(lines, "\n")
}

// says compares the level of a result, and checks that its text and its remedy contain the given parts.
func says(tb testing.TB, r Result, level Level, text, remedy string) {
	tb.Helper()
	assert.Equal(tb, level, r.Level, "%+v", r)
	assert.Contains(tb, r.Text, text)
	assert.Contains(tb, r.Remedy, remedy)
}
