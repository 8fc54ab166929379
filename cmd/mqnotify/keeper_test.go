package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// soon is below the bound at which a consumer looks without being woken.
const soon = 15 * time.Second

// Consumers that can't keep a gate are woken by a keeper for what anybody inserts, over
// its restarts too. It takes the gate over, and a second one stands by.
func TestKeeperKeeps(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		config, db := database(t, own, "orders", "invoices")
		c := background(t, config, "consume", "orders", "--format", "payload", "--mode", "gate", "--log-level", "debug")
		c.err.contains(t, "msg=\"keeps the gate\"")
		c.err.contains(t, "msg=reading")
		args := []string{"keeper", "orders", "invoices", "orders", "--look", "50ms"}
		first := background(t, config, args...)
		for _, topic := range []string{"orders", "invoices"} {
			first.err.contains(t, "msg=\"keeps the gate\" topic="+topic)
		}
		arrives := func(payload string) {
			t.Helper()
			begun := time.Now()
			mysqltest.Exec(t, db, "INSERT INTO orders (payload) VALUES (?)", payload)
			c.out.contains(t, payload+"\n")
			require.Less(t, time.Since(begun), soon)
		}
		arrives("one")

		second := background(t, config, args...)
		second.err.contains(t, "msg=\"stands by: another keeps the gate\" topic=orders")
		require.Equal(t, exitDone, first.interrupt(t).code)
		for _, topic := range []string{"orders", "invoices"} { // before which a lost session is an error
			second.err.contains(t, "msg=\"keeps the gate\" topic="+topic)
		}
		arrives("two")

		own.Restart(t)
		second.err.contains(t, "msg=\"lost the gate; it goes on by itself\" topic=orders")
		require.Eventually(t, func() bool { return db.Ping() == nil }, patience, time.Millisecond)
		arrives("three")
		r := second.interrupt(t)
		require.Equal(t, exitDone, r.code)
		require.Empty(t, r.out)
		require.Equal(t, exitDone, c.interrupt(t).code)
	})
}

func TestKeeperFails(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		mysqltest.Exec(t, db, "CREATE VIEW v AS SELECT * FROM orders")
		require.Contains(t, fail(t, exitFailed, config, "keeper", "orders", "order"), "did you mean `orders`")
		require.Contains(t, fail(t, exitFailed, config, "keeper", "v"), "is a view")

		mysqltest.Exec(t, db, "CREATE TABLE nokey (name VARCHAR(9))")
		k := background(t, config, "keeper", "nokey", "orders")
		k.err.contains(t, "only its flag is")
		k.err.contains(t, "msg=\"keeps the gate\" topic=orders")
		writer := s.User(t, config, "INSERT ON "+config.DBName+".orders")
		require.Contains(t, fail(t, exitFailed, writer, "keeper", "orders"), "mqnotify grants", "not only when it is its turn")
		require.Equal(t, exitDone, k.interrupt(t).code)
	})
}
