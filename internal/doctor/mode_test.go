package doctor

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// What a consumer in mode auto will choose is what it does choose.
func TestMode(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		says(t, examine(t, db, "orders").only(t, "mode"), OK, "by the gate", "")
		writer := examine(t, open(t, s.User(t, config, "INSERT ON "+config.DBName+".orders")), "orders")
		assert.Empty(t, writer.of("mode"), "who can't consume does not wait")

		var flags []string
		if !s.IsMariaDB() {
			flags = []string{"--log-bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON", "--server-id=1"}
		}
		own := s.Start(t, flags...)
		_, db = initialised(t, own)
		others := map[bool]string{true: "is seen within a second", false: "is seen at once too, since gtid_mode is on"}
		says(t, examine(t, db, "orders").only(t, "mode"), OK, others[s.IsMariaDB()], "")
		mysqltest.ExecAll(t, own.Admin(t), "SET GLOBAL read_only = 1")
		says(t, examine(t, db, "orders").only(t, "mode"), Warning,
			"consume polls, each 10 ms to 1 s (no gate: the server is read-only", "connect to the primary")
	})
}
