package capture

import (
	"encoding/json"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// zone is the time zone of the servers that the tests start.
const zone = "Europe/Berlin"

func TestMain(m *testing.M) {
	if err := os.Setenv("TZ", zone); err != nil {
		panic(err)
	}
	mysqltest.Main(m)
}

// patience limits every wait of a test.
const patience = time.Minute

func open(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// change is a message as capture writes it.
type change struct {
	Op    string          `json:"op"`
	Table string          `json:"table"`
	Old   json.RawMessage `json:"old"`
	New   json.RawMessage `json:"new"`
}

// changes returns the messages of a topic, each as "op old new".
func changes(tb testing.TB, db *notify.DB, topic string) []string {
	tb.Helper()
	var rows []struct{ Headers, Payload string }
	require.NoError(tb, db.Pool().SelectContext(tb.Context(), &rows, "SELECT headers, payload FROM "+ident.Quote(topic)+" ORDER BY id"))
	lines := []string{}
	for _, row := range rows {
		var c change
		require.NoError(tb, json.Unmarshal([]byte(row.Payload), &c), row.Payload)
		var headers map[string]string
		require.NoError(tb, json.Unmarshal([]byte(row.Headers), &headers), row.Headers)
		delete(headers, "key")
		require.Equal(tb, map[string]string{"op": c.Op, "table": c.Table}, headers)
		lines = append(lines, strings.Join([]string{c.Op, string(c.Old), string(c.New)}, " "))
	}
	return lines
}

// quiet is for logs that no test reads.
var quiet = slog.New(slog.DiscardHandler)

// keys returns the keys of a topic's messages, in order.
func keys(tb testing.TB, db *notify.DB, topic string) []string {
	tb.Helper()
	return mysqltest.Values[string](tb, db.Pool(), "SELECT JSON_UNQUOTE(JSON_EXTRACT(headers, '$.key')) FROM "+ident.Quote(topic)+" ORDER BY id")
}
