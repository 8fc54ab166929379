package producer

import (
	"context"
	"database/sql"
	"encoding/json"
	"log/slog"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/notify"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.FlagTable}

func TestMain(m *testing.M) { mysqltest.Main(m) }

// open returns a DB that is closed at the test's end.
func open(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// topicOn returns a database on the server with the topic in it.
func topicOn(tb testing.TB, s *mysqltest.Server, topic string) *notify.DB {
	tb.Helper()
	db := open(tb, s.Database(tb))
	schematest.Init(tb, db.Pool(), stateTables, topic)
	return db
}

func newProducer(tb testing.TB, db *notify.DB, topic string, options Options) *Producer {
	tb.Helper()
	p, err := New(db, topic, options)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Close()) })
	return p
}

func count(tb testing.TB, db *notify.DB, topic string) (n int) {
	tb.Helper()
	require.NoError(tb, db.Pool().GetContext(tb.Context(), &n, "SELECT COUNT(*) FROM "+ident.Quote(topic)))
	return n
}

// inserting waits until a session runs an INSERT, and returns its id.
func inserting(tb testing.TB, db *notify.DB) (session uint64) {
	tb.Helper()
	return only(tb, db, "INFO LIKE 'INSERT%' AND STATE IN ('User sleep', 'User lock')")
}

// only waits until a session of the database meets the condition, and returns its id.
func only(tb testing.TB, db *notify.DB, condition string) (session uint64) {
	tb.Helper()
	mysqltest.Eventually(tb, condition, func() bool {
		for _, session = range mysqltest.Sessions(tb, db.Pool(), db.Name(), condition) {
			return true
		}
		return false
	})
	return session
}

// stored returns the topic's rows as messages, by id.
func stored(tb testing.TB, db *notify.DB, topic string) map[uint64]Message {
	tb.Helper()
	rows, err := db.Pool().QueryContext(tb.Context(), "SELECT id, headers, payload FROM "+ident.Quote(topic))
	require.NoError(tb, err)
	defer rows.Close()
	messages := map[uint64]Message{}
	for rows.Next() {
		var id uint64
		var headers sql.Null[[]byte]
		var m Message
		require.NoError(tb, rows.Scan(&id, &headers, &m.Payload))
		if headers.Valid {
			require.NoError(tb, json.Unmarshal(headers.V, &m.Headers))
		}
		messages[id] = m
	}
	require.NoError(tb, rows.Err())
	return messages
}

// logged is a logger that keeps its messages.
type logged struct {
	slog.Handler
	mu   sync.Mutex
	text []string
}

func newLogged() *logged { return &logged{Handler: slog.DiscardHandler} }

func (l *logged) Enabled(context.Context, slog.Level) bool { return true }
func (l *logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *logged) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, r.Message)
	return nil
}

func (l *logged) messages() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text
}
