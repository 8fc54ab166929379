package doctor

import (
	"context"
	"strings"

	"github.com/mqnotify/mqnotify/internal/wake"
)

// seesRoutines asks whether the account may execute all routines of the database, and so sees them.
const seesRoutines = `SELECT (SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'EXECUTE' AND GRANTEE = me)
		+ (SELECT COUNT(*) FROM information_schema.SCHEMA_PRIVILEGES WHERE PRIVILEGE_TYPE = 'EXECUTE' AND GRANTEE = me AND DATABASE() LIKE TABLE_SCHEMA) > 0
	FROM ` + accountOfSession

// accountOfSession is a derived table of the session's account, as information_schema writes it.
const accountOfSession = `(SELECT CONCAT('\'', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '\'@\'', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '\'') AS me) account`

// procedures looks at the procedures that `mqnotify init` makes. A restored database may lack them, or name an account that made
// them and does not exist. An account that may execute only some sees no others.
func procedures(ctx context.Context, e *exam) (results []Result, err error) {
	names, err := wake.Procedures(ctx, e.db)
	if err != nil {
		return nil, err
	}
	var all bool
	if err := e.get(ctx, &all, seesRoutines); err != nil {
		return nil, err
	}
	if len(names.Broken) > 0 {
		results = append(results, problem("mqnotify init", "the account that made them does not exist, and calls fail with error 1449: %s",
			strings.Join(names.Broken, ", ")))
	}
	if len(names.Outdated) > 0 {
		results = append(results, warning("mqnotify init", "of another version of mqnotify: %s", strings.Join(names.Outdated, ", ")))
	}
	switch {
	case all && len(names.Seen) == 0 && !e.initialised:
		results = append(results, ok("there are none (mqnotify init makes them)"))
	case all && len(names.Missing) > 0:
		results = append(results, warning("mqnotify init", "not there: %s (a dump has them only with --routines)", strings.Join(names.Missing, ", ")))
	case len(results) > 0:
	case all:
		results = append(results, ok("all are there, and of this version"))
	default:
		results = append(results, ok("this account sees %d of them, and may execute no others", len(names.Seen)))
	}
	return results, nil
}
