package doctor

import (
	"context"
	"strings"

	"github.com/mqnotify/mqnotify/internal/wake"
)

// seesRoutines asks whether the account may execute all routines of the database, and so sees them.
const seesRoutines = `SELECT (SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = 'EXECUTE' AND GRANTEE = me)
		+ (SELECT COUNT(*) FROM information_schema.SCHEMA_PRIVILEGES WHERE PRIVILEGE_TYPE = 'EXECUTE' AND GRANTEE = me AND DATABASE() LIKE TABLE_SCHEMA) > 0
	FROM (SELECT CONCAT('\'', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '\'@\'', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '\'') AS me) account`

// procedures looks at the procedures that `mqnotify init` makes. A restored database may lack them. An account that may execute only
// some sees no others.
func procedures(ctx context.Context, e *exam) (results []Result, err error) {
	seen, missing, outdated, err := wake.Procedures(ctx, e.db)
	if err != nil {
		return nil, err
	}
	var all bool
	if err := e.get(ctx, &all, seesRoutines); err != nil {
		return nil, err
	}
	if len(outdated) > 0 {
		results = append(results, warning("mqnotify init", "of another version of mqnotify: %s", strings.Join(outdated, ", ")))
	}
	switch {
	case all && len(seen) == 0:
		results = append(results, ok("there are none (mqnotify init makes them)"))
	case all && len(missing) > 0:
		results = append(results, warning("mqnotify init", "not there: %s", strings.Join(missing, ", ")))
	case len(results) > 0:
	case all:
		results = append(results, ok("all are there, and of this version"))
	default:
		results = append(results, ok("this account sees %d of them, and may execute no others", len(seen)))
	}
	return results, nil
}
