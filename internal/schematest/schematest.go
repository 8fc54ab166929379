// Package schematest makes a test's tables.
package schematest

import (
	"slices"
	"strings"
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
	script, err := schema.Script()
	require.NoError(tb, err)
	statements := strings.Split(script, ";\n")
	statements = slices.DeleteFunc(statements, func(statement string) bool {
		made := tableOf(statement)
		return strings.TrimSpace(statement) == "" || made != "" && made != schema.VersionTable && !slices.Contains(tables, made)
	})
	for _, topic := range topics {
		statements = append(statements, schema.Topic(topic))
	}
	for _, statement := range statements {
		_, err := db.ExecContext(tb.Context(), statement)
		require.NoError(tb, err, statement)
	}
}

// tableOf returns the table that a statement of the script creates, or "".
func tableOf(statement string) string {
	_, created, _ := strings.Cut(statement, "CREATE TABLE IF NOT EXISTS ")
	name, _, _ := strings.Cut(created, " ")
	return name
}
