package doctor

import (
	"context"
	"strings"

	"github.com/mqnotify/mqnotify/internal/wake"
)

// seesAll reports whether the account has a privilege on the whole database, and therefore sees everything that the privilege is for:
// with EXECUTE all routines, with TRIGGER all triggers.
func (e *exam) seesAll(ctx context.Context, privilege string) (all bool, err error) {
	err = e.get(ctx, &all, `SELECT (SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE PRIVILEGE_TYPE = ? AND GRANTEE = me)
			+ (SELECT COUNT(*) FROM information_schema.SCHEMA_PRIVILEGES WHERE PRIVILEGE_TYPE = ? AND GRANTEE = me AND DATABASE() LIKE `+wake.GrantedSchema+`) > 0
		FROM (SELECT CONCAT('''', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''') AS me) account`,
		privilege, privilege)
	return all, err
}

// procedures checks the procedures that `mqnotify init` makes. A restored database may lack them, or the account that made them may not
// exist. An account sees only those that it may execute.
func procedures(ctx context.Context, e *exam) (results []Result, err error) {
	names, err := wake.Procedures(ctx, e.db)
	if err != nil {
		return nil, err
	}
	all, err := e.seesAll(ctx, "EXECUTE")
	if err != nil {
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
		results = append(results, ok("the database has none (mqnotify init makes them)"))
	case all && len(names.Missing) > 0:
		results = append(results, warning("mqnotify init", "not there: %s (a dump has them only with --routines)", strings.Join(names.Missing, ", ")))
	case len(results) > 0:
	case all:
		results = append(results, ok("all exist, in this version"))
	default:
		results = append(results, ok("this account may execute, and sees, %d of them", len(names.Seen)))
	}
	return results, nil
}
