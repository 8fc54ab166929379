package notify_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// Listen and Await continue over new connections when the network silently drops the existing ones.
func TestDroppedConnections(t *testing.T) {
	mysqltest.NotShort(t, "waiting.TestVanishedConnections and server.TestIdleConnectionIsReplaced")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		directly, config := openNotifications(t, s, true)
		mysqltest.Exec(t, directly.Pool(), "CREATE TABLE stock (n INT NOT NULL)")
		mysqltest.Exec(t, directly.Pool(), "INSERT INTO stock VALUES (0)")
		proxy := s.Proxy(t)
		db := openDB(t, proxy.Forgetful(config))
		got := listen(t, db, "n")
		require.NoError(t, notify.Notify(t.Context(), directly, "n", "before"))
		assert.Equal(t, "before", string(mysqltest.Receive(t, got).Payload))
		found := mysqltest.Result(func() []int {
			rows, err := awaitStock(t.Context(), db, 1)
			assert.NoError(t, err)
			return rows
		})
		asked(t, s, config, 1)
		proxy.Freeze()
		mysqltest.Exec(t, directly.Pool(), "UPDATE stock SET n = 1")
		require.NoError(t, notify.Notify(t.Context(), directly, "n", "after"))
		var payloads []string
		var rows []int
		mysqltest.Eventually(t, "the notification and the row are received", func() bool {
			select {
			case n := <-got:
				payloads = append(payloads, string(n.Payload))
			case rows = <-found:
			default:
			}
			return slices.Contains(payloads, "after") && len(rows) > 0
		})
		assert.Equal(t, []string{"after"}, payloads)
		assert.Equal(t, []int{1}, rows)
	})
}

// After a failover to a server that is behind, the ids begin again at some earlier one. No notification is received twice.
func TestListenAfterTheIDsWentBack(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := openNotifications(t, s, true)
		got := listen(t, db, "n")
		for _, payload := range []string{"one", "two", "three", "four", "five"} {
			require.NoError(t, notify.Notify(t.Context(), db, "n", payload))
			require.Equal(t, payload, string(mysqltest.Receive(t, got).Payload))
		}
		mysqltest.ExecAll(t, db.Pool(), "CREATE TABLE earlier LIKE mqnotify_notification", "INSERT INTO earlier SELECT * FROM mqnotify_notification WHERE payload IN ('one', 'two')",
			"RENAME TABLE mqnotify_notification TO later, earlier TO mqnotify_notification")
		require.NoError(t, db.Wake(t.Context(), schema.NotificationTable))
		for n := (notify.Notification{}); !n.Missed; n = mysqltest.Receive(t, got) {
			require.Empty(t, n.Payload)
		}
		require.NoError(t, notify.Notify(t.Context(), db, "n", "six"))
		require.NoError(t, db.Wake(t.Context(), schema.NotificationTable)) // the new table has no trigger
		require.Equal(t, "six", string(mysqltest.Receive(t, got).Payload))
	})
}
