package mqnotify_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A program refuses tables of a newer mqnotify, and tables of an older one until Init has upgraded them. The version counts when the
// program starts: a DB that found it right once continues.
func TestOtherVersions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		open := func() *mqnotify.DB {
			db, err := mqnotify.Open(config.FormatDSN())
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			return db
		}
		running := open()
		require.NoError(t, running.Init(t.Context(), "orders"))
		publish := func(db *mqnotify.DB) error { return mqnotify.Publish(t.Context(), db, "orders", "x") }
		consume := func(db *mqnotify.DB) error {
			return mqnotify.Consume(t.Context(), db, "orders", "g", func(context.Context, mqnotify.Message[string]) error {
				return mqnotify.ErrStop
			}, mqnotify.ConsumeOptions{From: "beginning"})
		}
		require.NoError(t, publish(running))

		mysqltest.Exec(t, running.Core().Pool().DB, "INSERT INTO mqnotify_schema (version) VALUES (99)")
		db := open()
		require.ErrorIs(t, publish(db), notify.ErrVersion)
		require.ErrorIs(t, consume(db), notify.ErrVersion)
		require.ErrorContains(t, db.Init(t.Context(), "orders"), "version 99")
		require.ErrorIs(t, publish(db), notify.ErrVersion)
		require.NoError(t, publish(running))
		require.NoError(t, consume(running))

		mysqltest.Exec(t, running.Core().Pool().DB, "DELETE FROM mqnotify_schema WHERE version = 99")
		mysqltest.Exec(t, running.Core().Pool().DB, "UPDATE mqnotify_schema SET version = 0")
		require.ErrorIs(t, publish(db), notify.ErrVersion)
		require.NoError(t, db.Init(t.Context(), "orders"))
		require.NoError(t, publish(db))
		require.NoError(t, consume(db))
	})
}
