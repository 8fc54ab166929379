package doctor

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// The doctor finds procedures that are missing or of another version, as after restoring a backup without them.
func TestProcedures(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		check := func() Result { return examine(t, db).only(t, "procedures") }
		says(t, check(), OK, "all exist, in this version", "")
		few := open(t, s.User(t, config, "EXECUTE ON PROCEDURE `"+config.DBName+"`.mqnotify_wait"))
		says(t, examine(t, few).only(t, "procedures"), OK, "sees, 1 of them", "")
		mysqltest.ExecAll(t, db.Pool(), "DROP PROCEDURE mqnotify_wait", "DROP PROCEDURE mqnotify_wake")
		says(t, check(), Warning, "not there: mqnotify_wake, mqnotify_wait (", "mqnotify init")
		require.NoError(t, wake.Routines(t.Context(), db, mysqltest.Logger(t, slog.LevelWarn)))
		mysqltest.ExecAll(t, db.Pool(), "DROP PROCEDURE mqnotify_notify", "CREATE PROCEDURE mqnotify_notify(name TEXT) SELECT 1")
		says(t, check(), Warning, "of another version of mqnotify: mqnotify_notify", "mqnotify init")
		fresh := open(t, s.Database(t))
		says(t, examine(t, fresh).only(t, "procedures"), OK, "the database has none", "")
	})
}

// The doctor finds a wake trigger of mqnotify's own tables that is missing, or whose account does not exist. It says so if the
// account can't see the triggers.
func TestOwnTriggers(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		check := func() Result { return examine(t, db).only(t, "triggers") }
		says(t, check(), OK, "the wake triggers of mqnotify's own tables work", "")
		few := open(t, s.User(t, config, "SELECT ON `"+config.DBName+"`.*"))
		says(t, examine(t, few).only(t, "triggers"), OK, "sees 0 of the 3", "")
		trigger := "mqnotify_wake_insert_mqnotify_task"
		mysqltest.Exec(t, db.Pool(), "DROP TRIGGER "+trigger)
		says(t, check(), Warning, "no wake trigger on mqnotify_task: ", "mqnotify init")
		mysqltest.Exec(t, db.Pool(), "CREATE DEFINER = gone@nowhere TRIGGER "+trigger+" AFTER INSERT ON mqnotify_task FOR EACH ROW SET @x = 1")
		says(t, check(), Problem, trigger+": its account gone@nowhere does not exist: every write to the table fails with error 1449", "mqnotify init")
	})
}

// The doctor also finds any other trigger of a topic whose account does not exist, because every write to the topic fails.
func TestTriggerWithoutAccount(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := initialised(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE DEFINER = gone@nowhere TRIGGER audit AFTER INSERT ON orders FOR EACH ROW SET @x = 1")
		says(t, examine(t, db, "orders").only(t, "flag"), Problem, "trigger `audit`: its account gone@nowhere does not exist", "make the account")
	})
}
