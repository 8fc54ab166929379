package wake

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// accountProblem says why the triggers of an account make writes to a table fail. It is empty when they do not, and when
// the caller may not read about accounts.
func accountProblem(ctx context.Context, db *notify.DB, account, table string) (string, error) {
	at := strings.LastIndex(account, "@")
	if at < 0 {
		return "", nil
	}
	user, host := account[:at], account[at+1:]
	count := func(query string, args ...any) (n int, err error) {
		err = db.Pool().GetContext(ctx, &n, query, args...)
		return n, err
	}
	n, err := count("SELECT COUNT(*) FROM mysql.user WHERE User = ? AND Host = ?", user, host)
	switch {
	case server.NoPrivilege(err):
		return "", nil
	case err != nil:
		return "", fmt.Errorf("wake: read about the account %s: %w", account, err)
	case n == 0:
		return "its account " + account + " does not exist: every write to the table fails with error 1449", nil
	}
	// An account with roles may have the privilege by one.
	for _, roles := range []string{
		"SELECT COUNT(*) FROM mysql.role_edges WHERE TO_USER = ? AND TO_HOST = ?", // MySQL
		"SELECT COUNT(*) FROM mysql.roles_mapping WHERE User = ? AND Host = ?",    // MariaDB
	} {
		n, err := count(roles, user, host)
		if err != nil && !server.Is(err, server.ErrNoSuchTable) {
			return "", nil // it can't be told
		}
		if n > 0 {
			return "", nil
		}
	}
	grantee := "'" + user + "'@'" + host + "'"
	n, err = count(`SELECT
		(SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = ? AND PRIVILEGE_TYPE = 'TRIGGER') +
		(SELECT COUNT(*) FROM information_schema.SCHEMA_PRIVILEGES
			WHERE GRANTEE = ? AND PRIVILEGE_TYPE = 'TRIGGER' AND ? LIKE TABLE_SCHEMA) +
		(SELECT COUNT(*) FROM information_schema.TABLE_PRIVILEGES
			WHERE GRANTEE = ? AND PRIVILEGE_TYPE = 'TRIGGER' AND TABLE_SCHEMA = ? AND TABLE_NAME = ?)`,
		grantee, grantee, db.Name(), grantee, db.Name(), table)
	if err != nil {
		return "", fmt.Errorf("wake: read about the account %s: %w", account, err)
	}
	if n == 0 {
		return "its account " + account + " has no TRIGGER privilege on the table: every write fails with error 1142", nil
	}
	return "", nil
}
