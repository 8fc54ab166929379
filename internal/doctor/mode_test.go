package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// The doctor names the waiter that a consumer in mode auto will choose.
func TestMode(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		says(t, examine(t, db, "orders").only(t, "mode"), OK, "consume polls at least once a second", "")
		writer := examine(t, open(t, s.User(t, config, "INSERT ON "+config.DBName+".orders")), "orders")
		assert.Empty(t, writer.of("mode"), "an account that can't consume does not wait")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{}, "orders"))
		says(t, examine(t, db, "orders").only(t, "mode"), OK, "the table's wake trigger wakes consume", "")

		var flags []string
		if !s.IsMariaDB() {
			flags = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1", "--log-bin-trust-function-creators"}
		}
		own := s.Start(t, flags...)
		_, db = initialised(t, own)
		if !s.IsMariaDB() {
			says(t, examine(t, db, "orders").only(t, "mode"), OK, "every commit on the server wakes consume, by its GTID", "")
		}
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{}, "orders"))
		mysqltest.ExecAll(t, own.Admin(t), "SET GLOBAL read_only = 1")
		found := examine(t, db, "orders").only(t, "mode")
		if s.IsMariaDB() {
			says(t, found, Warning, "consume polls at least once a second (", "connect to the primary")
		} else {
			says(t, found, OK, "by its GTID", "")
		}
	})
}
