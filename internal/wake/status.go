package wake

import (
	"context"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// State is a wake trigger that exists.
type State struct {
	Table, Trigger string
	Event          string // insert, update or delete
	Definer        string // the account with whose privileges it runs
	// Problem says why the trigger wakes no listener, or makes writes fail. Empty means that it works.
	Problem string
	// WritesFail reports whether writes to the table fail because of the trigger.
	WritesFail bool

	text string
}

// Status returns the wake triggers of the database, in the order of the tables' names. It finds only triggers that the account
// may see, which needs TRIGGER on their table.
func Status(ctx context.Context, db *notify.DB) ([]State, error) { return status(ctx, db, "", nil) }

// status reads the wake triggers that meet a condition.
func status(ctx context.Context, db *notify.DB, condition string, args []any) (states []State, err error) {
	var rows []struct {
		Table   string `db:"table_name"`
		Trigger string `db:"trigger_name"`
		Event   string `db:"event"`
		Text    string `db:"text"`
		Definer string `db:"definer"`
		Routine string `db:"routine_definer"`
	}
	err = db.Pool().SelectContext(ctx, &rows, `SELECT t.EVENT_OBJECT_TABLE AS table_name, t.TRIGGER_NAME AS trigger_name,
			LOWER(t.EVENT_MANIPULATION) AS event, t.ACTION_STATEMENT AS text, t.DEFINER AS definer,
			COALESCE(r.DEFINER, '') AS routine_definer
		FROM information_schema.TRIGGERS t
		LEFT JOIN information_schema.ROUTINES r ON r.ROUTINE_SCHEMA = t.EVENT_OBJECT_SCHEMA AND r.ROUTINE_NAME = ?
		WHERE t.EVENT_OBJECT_SCHEMA = ? AND t.TRIGGER_NAME LIKE 'mqnotify%'`+condition+`
		ORDER BY table_name, FIELD(event, 'insert', 'update', 'delete')`, append([]any{waiting.WakeRoutine, db.Name()}, args...)...)
	if err != nil {
		return nil, fmt.Errorf("wake: read the triggers: %w", err)
	}
	for _, row := range rows {
		if !strings.EqualFold(row.Trigger, waiting.TriggerName(row.Table, row.Event)) {
			continue
		}
		s := State{Table: row.Table, Trigger: row.Trigger, Event: row.Event, Definer: row.Definer, text: row.Text}
		broken, err := AccountProblem(ctx, db, row.Definer, row.Table)
		if err != nil {
			return nil, err
		}
		switch {
		case broken != "":
			s.Problem, s.WritesFail = broken, true
		case !strings.Contains(row.Text, waiting.Prefix(db.Name())+":"):
			s.Problem = "it is from another database, or from another version of mqnotify"
		case row.Routine == "":
			s.Problem = "the routine " + waiting.WakeRoutine + " does not exist, or is not visible to this account"
		case row.Routine != row.Definer:
			s.Problem = "the routine " + waiting.WakeRoutine + " belongs to another account, " + row.Routine
		}
		states = append(states, s)
	}
	return states, nil
}

// OfTable returns the wake triggers of a table that the account may see, and the participants of its gate.
func OfTable(ctx context.Context, db *notify.DB, table string) (states []State, gate waiting.GateStatus, err error) {
	if states, err = ofTable(ctx, db, table); err != nil {
		return nil, gate, err
	}
	gate, err = waiting.ReadGate(ctx, db.Pool(), db.Name(), table)
	return states, gate, err
}

func ofTable(ctx context.Context, db *notify.DB, table string) ([]State, error) {
	return status(ctx, db, " AND t.EVENT_OBJECT_TABLE = ?", []any{table})
}

// accountExists reports whether the account exists. It returns true if the caller may not read about accounts.
func accountExists(ctx context.Context, db *notify.DB, account string) (bool, error) {
	at := strings.LastIndex(account, "@")
	if at < 0 {
		return true, nil
	}
	var n int
	err := db.Pool().GetContext(ctx, &n, "SELECT COUNT(*) FROM mysql.user WHERE User = ? AND Host = ?", account[:at], account[at+1:])
	switch {
	case server.NoPrivilege(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("wake: read about the account %s: %w", account, err)
	}
	return n > 0, nil
}

// AccountProblem returns why the triggers of an account make writes to a table fail. It returns an empty text if they do not, or if
// the caller may not read about accounts.
func AccountProblem(ctx context.Context, db *notify.DB, account, table string) (string, error) {
	at := strings.LastIndex(account, "@")
	if at < 0 {
		return "", nil
	}
	user, host := account[:at], account[at+1:]
	count := func(query string, args ...any) (n int, err error) {
		err = db.Pool().GetContext(ctx, &n, query, args...)
		return n, err
	}
	exists, err := accountExists(ctx, db, account)
	switch {
	case err != nil:
		return "", err
	case !exists:
		return "its account " + account + " does not exist: every write to the table fails with error 1449", nil
	}
	// An account with roles may have the privilege through one.
	for _, roles := range []string{
		"SELECT COUNT(*) FROM mysql.role_edges WHERE TO_USER = ? AND TO_HOST = ?", // MySQL
		"SELECT COUNT(*) FROM mysql.roles_mapping WHERE User = ? AND Host = ?",    // MariaDB
	} {
		n, err := count(roles, user, host)
		if err != nil && !server.Is(err, server.ErrNoSuchTable) {
			return "", nil // the caller may not read this
		}
		if n > 0 {
			return "", nil
		}
	}
	grantee := "'" + user + "'@'" + host + "'"
	n, err := count(`SELECT
		(SELECT COUNT(*) FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = ? AND PRIVILEGE_TYPE = 'TRIGGER') +
		(SELECT COUNT(*) FROM information_schema.SCHEMA_PRIVILEGES
			WHERE GRANTEE = ? AND PRIVILEGE_TYPE = 'TRIGGER' AND ? LIKE `+GrantedSchema+`) +
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

// GrantedSchema is what follows LIKE in a query of information_schema.SCHEMA_PRIVILEGES: the pattern of a GRANT, whose backslashes
// escape in every sql_mode.
const GrantedSchema = "REPLACE(REPLACE(TABLE_SCHEMA, '|', '||'), CHAR(92 USING utf8mb4), '|') ESCAPE '|'"
