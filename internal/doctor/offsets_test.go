package doctor

import (
	"testing"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The doctor warns of a group whose offset is ahead of the table's next id, but not if the rows were only deleted.
func TestOffsetsAhead(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		check := func() Result { return examine(t, db, "orders").only(t, "offsets") }
		says(t, check(), OK, "no group is ahead", "")
		mysqltest.ExecAll(t, db.Pool(), "INSERT INTO orders (payload) VALUES ('a'), ('b'), ('c')",
			"INSERT INTO mqnotify_offset (topic, group_name, settled, delivered, fence, version, member) VALUES ('orders', 'mailer', 3, '', 0, 0, '')",
			"DELETE FROM orders")
		says(t, check(), OK, "no group is ahead", "")
		mysqltest.Exec(t, db.Pool(), "TRUNCATE TABLE orders")
		says(t, check(), Warning, `group "mailer" has done all ids up to 3, and the table's next id is 1, as after restoring an older backup: the group's consumer refuses to begin`, "mqnotify consume orders --group mailer --reset --from beginning")
		few := open(t, s.User(t, config, "SELECT ON `"+config.DBName+"`.orders"))
		says(t, examine(t, few, "orders").only(t, "offsets"), OK, "none that this account may see", "")
	})
}
