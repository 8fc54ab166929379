package waiting_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The invariant: a session of an account with SYSTEM_USER, which no ordinary writer can wake, does not lead. It polls as
// long as it is alone, follows a session of another account, and makes no process miss a row of an ordinary writer.
func TestSystemUser(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := open(t, config)
		if s.IsMariaDB() {
			return // it has no SYSTEM_USER
		}
		makeTopic(t, db, config, "orders", true)
		writer := open(t, s.User(t, config, "INSERT ON `"+config.DBName+"`.orders"))
		insert := func() { mysqltest.Exec(t, writer, "INSERT INTO orders (payload) VALUES ('x')") }
		system := config.Clone()
		system.User = mysqltest.SystemUser
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		administrator := listen(t, system, "orders")
		head, err := administrator.Head(ctx)
		require.NoError(t, err)
		require.ErrorContains(t, administrator.Ready(ctx), "SYSTEM_USER")
		by, _ := administrator.Mode()
		require.Equal(t, "poll", by)
		insert()
		head, err = administrator.Wait(ctx, head, 30*time.Second)
		require.NoError(t, err)
		require.EqualValues(t, 1, head.V, "a poll finds the row")

		ordinary := listen(t, config, "orders")
		ready(t, ordinary)
		mysqltest.Eventually(t, "the administrator's session follows", func() bool {
			by, _ := administrator.Mode()
			return by == "trigger"
		})
		sleeps(t, ordinary)
		sleeps(t, administrator)
		insert()
		found, err := ordinary.Wait(ctx, head, 30*time.Second)
		require.NoError(t, err)
		require.EqualValues(t, 2, found.V, "the trigger's hint comes")
		found, err = administrator.Wait(ctx, head, 30*time.Second)
		require.NoError(t, err)
		require.EqualValues(t, 2, found.V, "and is passed on")
	})
}
