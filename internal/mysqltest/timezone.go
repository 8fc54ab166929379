package mysqltest

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"
)

// ClocksForward returns a config whose sessions are in a time zone in which the clocks went forward by an hour, an hour
// ago.
func (s *Server) ClocksForward(tb testing.TB, config *mysql.Config) *mysql.Config {
	tb.Helper()
	zone := "mqnotify/" + randomName()
	admin := s.Admin(tb)
	made, err := admin.ExecContext(tb.Context(), "INSERT INTO mysql.time_zone (Use_leap_seconds) VALUES ('N')")
	require.NoError(tb, err)
	id, err := made.LastInsertId()
	require.NoError(tb, err)
	Exec(tb, admin, "INSERT INTO mysql.time_zone_transition_type (Time_zone_id, Transition_type_id, `Offset`, Is_DST, Abbreviation) "+
		"VALUES (?, 0, 0, 0, 'WINTER'), (?, 1, 3600, 1, 'SUMMER')", id, id)
	Exec(tb, admin, "INSERT INTO mysql.time_zone_transition (Time_zone_id, Transition_time, Transition_type_id) "+
		"VALUES (?, UNIX_TIMESTAMP() - 3600, 1)", id)
	Exec(tb, admin, "INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES (?, ?)", zone, id)
	config = config.Clone()
	config.Params = map[string]string{"time_zone": "'" + zone + "'"}
	return config
}
