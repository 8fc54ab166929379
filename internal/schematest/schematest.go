// Package schematest makes a test's tables.
package schematest

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
)

// Init is [schema.Init] on an empty database, but of the tables of mqnotify's state it makes only those that are named: to create
// and drop a table takes MySQL 5 ms of a processor, which is much of what a short test takes. In the long form it makes all.
func Init(tb testing.TB, db schema.Conn, tables []string, topics ...string) {
	tb.Helper()
	if mysqltest.Long() {
		require.NoError(tb, schema.Init(tb.Context(), db, topics...))
		return
	}
	exec := func(statement string, args ...any) {
		_, err := db.ExecContext(tb.Context(), statement, args...)
		require.NoError(tb, err, statement)
	}
	for _, statement := range schema.Statements() {
		if made := schema.TableOf(statement); made == schema.VersionTable || slices.Contains(tables, made) {
			exec(statement)
		}
	}
	exec("INSERT IGNORE INTO "+schema.VersionTable+" (version) VALUES (?)", schema.Newest())
	for _, topic := range topics {
		exec(schema.Topic(topic))
	}
}
