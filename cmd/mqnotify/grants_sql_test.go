package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/notify"
)

// TestGrantsOfSQL is TestGrantsAreTheLeast for programs that call the procedures.
func TestGrantsOfSQL(t *testing.T) {
	calls := func(statements ...string) func(*testing.T, account) bool {
		return func(t *testing.T, a account) bool {
			db, err := notify.OpenConfig(a.config)
			require.NoError(t, err)
			defer func() { require.NoError(t, db.Close()) }()
			for _, statement := range statements {
				if _, err := db.Pool().ExecContext(t.Context(), statement); err != nil {
					t.Log(err)
					return false
				}
			}
			return true
		}
	}
	leastOfAll(t, []role{
		{"wait", []string{"sql, to CALL mqnotify_wait"}, calls("CALL mqnotify_wait('orders', 0, 0)", "CALL mqnotify_wait('orders', 1000, 0.1)")},
		{"await", []string{"sql, to CALL mqnotify_await"}, calls("CALL mqnotify_await('orders', 'SELECT MAX(id) FROM orders', 0)")},
		{"listen", []string{"sql, to CALL mqnotify_listen"}, calls("CALL mqnotify_listen('reload', NULL, 0.1)")},
		{"woken", []string{"sql, besides"}, calls("CALL mqnotify_count_triggers('orders', @triggers)")},
		{"publish", []string{"sql, to CALL mqnotify_publish"}, calls(`CALL mqnotify_publish('orders', '{"a":"b"}', 'x')`)},
		{"notify", []string{"sql, to CALL mqnotify_notify"}, calls("CALL mqnotify_notify('reload', 'x')")},
	})
}
