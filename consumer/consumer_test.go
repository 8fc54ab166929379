package consumer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A consumer from the beginning gets existing and new rows.
func TestConsumeBacklogAndNews(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one", "two")
		var got collected
		c := run(t, db, "orders", Options{Group: "g", From: "beginning"}, got.handler())
		got.waitFor(t, "one", "two")
		insert(t, db, "orders", "three")
		got.waitFor(t, "one", "two", "three")
		require.NoError(t, c.end(t))

		// The group continues where it was.
		insert(t, db, "orders", "four")
		var rest collected
		c = run(t, db, "orders", Options{Group: "g", From: "beginning"}, rest.handler())
		rest.waitFor(t, "four")
		require.NoError(t, c.end(t))
	})
}

// A row of a transaction that commits late, with a lower id, comes when it
// commits. Rows with larger ids do not wait for it.
func lateCommit(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	ctx := context.WithoutCancel(t.Context())
	var got collected
	c := run(t, db, "orders", Options{From: "beginning", Writers: writers}, got.handler())
	insert(t, db, "orders", "one")
	got.waitFor(t, "one")
	late, err := db.Pool().BeginTx(ctx, nil)
	require.NoError(t, err)
	defer func() { _ = late.Rollback() }()
	_, err = late.ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('late')")
	require.NoError(t, err)
	insert(t, db, "orders", "three", "four")
	got.waitFor(t, "one", "three", "four")
	require.NoError(t, late.Commit())
	got.waitFor(t, "one", "three", "four", "late")
	require.NoError(t, c.end(t))
}

// A DSN may ask for column names with the table's alias.
func TestColumnsWithAlias(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		config.ColumnsWithAlias = true
		db := openConfig(t, config, "orders")
		insert(t, db, "orders", "one")
		var got collected
		c := run(t, db, "orders", Options{Group: "g", From: "beginning"}, got.handler())
		got.waitFor(t, "one")
		require.NoError(t, c.end(t))
	})
}
