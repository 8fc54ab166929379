package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// init makes the wake trigger, a consumer waits for it, and wake shows and removes it.
func TestWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		r := mqnotify(t, config, "", "init", "orders")
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.err, "the wake trigger is ready")
		require.Contains(t, succeed(t, config, "status", "orders"), "trigger:    wakes at every insert; nobody listens\n")
		c := background(t, config, "consume", "orders")
		c.err.contains(t, "mode=trigger")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('by plain SQL')")
		c.out.contains(t, "by plain SQL")
		require.Contains(t, succeed(t, config, "status", "orders"), " leads the gate, 0 others wait at it\n")
		require.Contains(t, succeed(t, config, "status", "orders", "--json"), `"triggers":[{"on":"insert","trigger":"mqnotify_wake_insert_orders"`)
		require.Contains(t, succeed(t, config, "doctor", "orders"), "consume waits by the table's wake trigger")
		require.Regexp(t, `TABLE +ON +DEFINER +STATE\norders +insert +root@\S+ +ok\n`, succeed(t, config, "wake", "status"))
		require.Contains(t, succeed(t, config, "wake", "status", "--json"), `"problem":""`)
		require.Equal(t, exitDone, c.interrupt(t).code)

		r = mqnotify(t, config, "", "wake", "remove", "orders")
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.err, "the trigger is dropped")
		require.Contains(t, succeed(t, config, "wake", "status"), "no wake trigger")
		require.Contains(t, succeed(t, config, "doctor", "orders"), "mqnotify wake install orders")
		succeed(t, config, "wake", "install", "orders", "--on", "insert,update")
		require.Equal(t, 2, strings.Count(succeed(t, config, "wake", "status"), " ok\n"))

		succeed(t, config, "init", "bulk", "--no-trigger")
		require.NotContains(t, succeed(t, config, "wake", "status"), "bulk")
		require.Contains(t, fail(t, exitUsage, config, "wake", "install", "orders", "--on", "select"), "insert, update")
		require.Contains(t, fail(t, exitUsage, config, "wake"), "install, status or remove")
		require.Contains(t, fail(t, exitFailed, config, "wake", "install", "nothing"), "nothing")

		mysqltest.Exec(t, db, "DROP PROCEDURE mqnotify_wake")
		r = mqnotify(t, config, "", "wake", "status")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.out, "BROKEN")
		require.Contains(t, r.err, "mqnotify wake install orders")
		require.Contains(t, mqnotify(t, config, "", "doctor", "orders").out, "mqnotify_wake_insert_orders wakes no listener")
	})
}

// An account that may not make triggers makes topics all the same, and is told what that costs and what to do.
func TestInitWithoutTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		user := s.User(t, config, "CREATE, SELECT, INSERT, REFERENCES ON `"+config.DBName+"`.*")
		r := mqnotify(t, user, "", "init", "orders")
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.err, "no wake trigger: rows that other programs insert are found by polling")
		require.Contains(t, r.err, "mqnotify grants --role admin")
		succeed(t, user, "produce", "orders", "x")
	})
}
