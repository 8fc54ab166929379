package main

import (
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
		require.Contains(t, succeed(t, config, "status", "orders"), "trigger:    wakes the listeners at every insert\ngate:       no session waits for the trigger\n")
		c := background(t, config, "consume", "orders")
		c.err.contains(t, "mode=trigger")
		mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES ('by plain SQL')")
		c.out.contains(t, "by plain SQL")
		require.Contains(t, succeed(t, config, "status", "orders"), "gate:       session ")
		require.Contains(t, succeed(t, config, "status", "orders", "--json"), `"wakes":["insert"],"triggers":[{"on":"insert","trigger":"mqnotify_wake_insert_orders"`)
		require.Contains(t, succeed(t, config, "doctor", "orders"), "the table's wake trigger wakes consume")
		require.Regexp(t, `^TABLE +ON +DEFINER +STATE\nmqnotify_notification +insert +root@\S+ +ok\nmqnotify_ring +update +root@\S+ +ok\n`+
			`mqnotify_task +insert +root@\S+ +ok\norders +insert +root@\S+ +ok\n$`, succeed(t, config, "wake", "status"))
		require.Contains(t, succeed(t, config, "wake", "status", "--json"), `"problem":""`)
		require.Equal(t, exitDone, c.interrupt(t).code)

		r = mqnotify(t, config, "", "wake", "remove", "orders")
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.err, "the trigger is dropped")
		require.NotContains(t, succeed(t, config, "wake", "status"), "orders")
		require.Contains(t, succeed(t, config, "status", "orders"), "trigger:    none that works")
		require.Contains(t, succeed(t, config, "doctor", "orders"), "mqnotify wake install orders")
		succeed(t, config, "wake", "install", "orders", "--on", "insert,update")
		require.Regexp(t, `orders +insert .* ok\norders +update .* ok\n$`, succeed(t, config, "wake", "status"))

		succeed(t, config, "init", "bulk", "--no-trigger")
		require.NotContains(t, succeed(t, config, "wake", "status"), "bulk")
		require.Contains(t, fail(t, exitUsage, config, "wake", "install", "orders", "--on", "select"), "insert, update")
		require.Contains(t, fail(t, exitUsage, config, "wake"), "install, status or remove")
		require.Contains(t, fail(t, exitFailed, config, "wake", "install", "nothing"), "nothing")

		mysqltest.Exec(t, db, "CREATE DEFINER = 'mq_gone'@'%' TRIGGER mqnotify_wake_delete_orders AFTER DELETE ON orders FOR EACH ROW SET @seen = 1")
		require.Contains(t, fail(t, exitFailed, config, "wake", "status"),
			"the trigger mqnotify_wake_delete_orders makes writes to orders fail: run mqnotify wake install orders --on delete\n")
		require.Contains(t, succeed(t, config, "status", "orders"), "(mqnotify wake install orders --on delete)")
		succeed(t, config, "wake", "install", "orders", "--on", "delete")
		mysqltest.Exec(t, db, "DROP PROCEDURE mqnotify_wake")
		r = mqnotify(t, config, "", "wake", "status")
		require.Equal(t, exitFailed, r.code)
		require.Contains(t, r.out, "BROKEN")
		require.Contains(t, r.err, "wakes no listener: run mqnotify wake install mqnotify_notification --on insert\n")
		require.Contains(t, mqnotify(t, config, "", "doctor", "orders").out, "mqnotify_wake_insert_orders wakes no listener")
	})
}

// An account that may not make triggers can make topics. init says what the lack of triggers costs, and what to do.
func TestInitWithoutTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s)
		user := s.User(t, config, "CREATE, SELECT, INSERT, REFERENCES ON `"+config.DBName+"`.*")
		r := mqnotify(t, user, "", "init", "orders")
		require.Equal(t, exitDone, r.code, r.err)
		require.Contains(t, r.err, "not all wake triggers could be made: rows that other programs insert are found by polling")
		require.Contains(t, r.err, "mqnotify grants --role admin")
		succeed(t, user, "produce", "orders", "x")

		other, _ := database(t, s)
		require.NotContains(t, mqnotify(t, other, "", "init", "orders", "--no-trigger").err, "wake trigger")
		require.Contains(t, succeed(t, other, "wake", "status"), "no wake trigger")
	})
}
