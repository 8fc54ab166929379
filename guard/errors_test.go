package guard

import (
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/notify"
)

// A missing column may belong to the user's table, so `mqnotify init` is no remedy.
func TestMissingColumn(t *testing.T) {
	require.NotErrorIs(t, explain("once in users, key", "7", &mysql.MySQLError{Number: 1054}), notify.ErrNoState)
	require.ErrorIs(t, explain("lease", "x", &mysql.MySQLError{Number: 1146}), notify.ErrNoState)
}
