package notify_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
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
