package doctor

import (
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
)

// A database that was restored without its procedures, or with older ones, is told from one that has them.
func TestProcedures(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := initialised(t, s)
		check := func() Result { return examine(t, db).only(t, "procedures") }
		says(t, check(), OK, "there are none", "")
		require.NoError(t, wake.Routines(t.Context(), db, mysqltest.Logger(t, slog.LevelWarn)))
		says(t, check(), OK, "all are there, and of this version", "")
		few := open(t, s.User(t, config, "EXECUTE ON PROCEDURE `"+config.DBName+"`.mqnotify_wait"))
		says(t, examine(t, few).only(t, "procedures"), OK, "sees 1 of them", "")
		mysqltest.ExecAll(t, db.Pool(), "DROP PROCEDURE mqnotify_wait", "DROP PROCEDURE mqnotify_wake")
		says(t, check(), Warning, "not there: mqnotify_wake, mqnotify_wait", "mqnotify init")
		require.NoError(t, wake.Routines(t.Context(), db, mysqltest.Logger(t, slog.LevelWarn)))
		mysqltest.ExecAll(t, db.Pool(), "DROP PROCEDURE mqnotify_notify", "CREATE PROCEDURE mqnotify_notify(name TEXT) SELECT 1")
		says(t, check(), Warning, "of another version of mqnotify: mqnotify_notify", "mqnotify init")
	})
}
