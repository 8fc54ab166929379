package wake

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/routines"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// words returns a text without its comment lines, and with single spaces, to compare it with the text that a server has stored.
// MariaDB's client removes comments when it restores a dump.
func words(statement string) string {
	var text strings.Builder
	for line := range strings.Lines(statement) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			text.WriteString(line)
		}
	}
	return strings.Join(strings.Fields(text.String()), " ")
}

// routines creates the routines that do not exist, and replaces those of another version and those of an account whose triggers on
// the tables would fail. The account that owns the routines must own the triggers.
func (i *installer) routines(ctx context.Context, tables []string) error {
	existing, err := readRoutines(ctx, i.db)
	if err != nil {
		return err
	}
	problems := make(map[string]string) // of the accounts that own some
	for _, is := range existing {
		if _, known := problems[is.Definer]; !known && len(tables) > 0 {
			if problems[is.Definer], err = AccountProblem(ctx, i.db, is.Definer, tables[0]); err != nil {
				return err
			}
		}
	}
	made := 0
	var unsure []string // procedures on which accounts may have lost EXECUTE
	var why error
	defer func() {
		if len(unsure) > 0 {
			i.options.Logger.WarnContext(ctx, "other accounts may have lost EXECUTE on procedures that were replaced: repeat their grants (mqnotify grants prints them)",
				"procedures", unsure, "why", why)
		}
	}()
	for _, r := range routines.All(i.db.Name()) {
		is, exists := existing[r.Name]
		if exists && problems[is.Definer] == "" && is.current(r) {
			continue
		}
		mode := "" // the server stores it with the routine
		if r.Name == routines.Publish {
			mode = "STRICT_ALL_TABLES" // it must not cut a payload, whatever the caller's mode is
		}
		if err := i.exec(ctx, "SET SESSION sql_mode = '"+mode+"'"); err != nil {
			return fmt.Errorf("wake: set sql_mode: %w", err)
		}
		lost, err := i.create(ctx, r, exists)
		if err != nil {
			return err
		}
		if lost != nil {
			unsure, why = append(unsure, r.Name), lost
		}
		made++
	}
	if made > 0 {
		i.options.Logger.InfoContext(ctx, "the procedures are ready", "made", made)
	}
	return nil
}

// create creates a routine. If it exists, create replaces it, and gives the accounts that may execute it the privilege again; lost is the
// reason why it could not.
func (i *installer) create(ctx context.Context, r waiting.Routine, exists bool) (lost, err error) {
	statement := r.Statement
	var accounts []string
	switch {
	case exists && i.session.Capabilities().MariaDB: // the privileges stay
		statement = strings.Replace(statement, "CREATE PROCEDURE", "CREATE OR REPLACE PROCEDURE", 1)
	case exists: // MySQL revokes the privileges with the DROP
		if accounts, lost = i.executors(ctx, r.Name); lost != nil && !server.NoPrivilege(lost) {
			return nil, lost
		}
		if err := i.exec(ctx, "DROP PROCEDURE IF EXISTS "+ident.Quote(r.Name)); err != nil {
			return nil, fmt.Errorf("wake: drop routine %s: %w", r.Name, err)
		}
	}
	if err := i.exec(ctx, statement); err != nil && !server.Is(err, server.ErrRoutineExists) {
		return nil, fmt.Errorf("wake: make routine %s: %w", r.Name, err)
	}
	if len(accounts) > 0 {
		lost = i.exec(ctx, "GRANT EXECUTE ON PROCEDURE "+ident.Quote(r.Name)+" TO "+strings.Join(accounts, ", "))
	}
	return lost, nil
}

// executors returns the accounts that have EXECUTE on a procedure, as GRANT takes them.
func (i *installer) executors(ctx context.Context, procedure string) (accounts []string, err error) {
	var rows []struct {
		User string `db:"User"`
		Host string `db:"Host"`
	}
	err = i.db.Pool().SelectContext(ctx, &rows, `SELECT User, Host FROM mysql.procs_priv
		WHERE Db = DATABASE() AND Routine_name = ? AND Routine_type = 'PROCEDURE' AND FIND_IN_SET('Execute', Proc_priv)`, procedure)
	if err != nil {
		return nil, fmt.Errorf("wake: read which accounts may execute %s: %w", procedure, err)
	}
	for _, row := range rows {
		accounts = append(accounts, ident.Quote(row.User)+"@"+ident.Quote(row.Host))
	}
	return accounts, nil
}

// routine is a routine that exists.
type routine struct {
	Name    string         `db:"name"`
	Text    sql.NullString `db:"text"` // NULL if it is not visible, because another account owns it
	Definer string         `db:"definer"`
}

// current reports whether the routine is of this version, as far as its text is visible.
func (is routine) current(want waiting.Routine) bool {
	return !is.Text.Valid || strings.HasSuffix(words(want.Statement), words(is.Text.String))
}

// readRoutines returns the database's routines that the account may see, by their names. A query for each would take most of the
// time of an init.
func readRoutines(ctx context.Context, db *notify.DB) (map[string]routine, error) {
	var all []routine
	err := db.Pool().SelectContext(ctx, &all, `SELECT ROUTINE_NAME AS name, ROUTINE_DEFINITION AS text, DEFINER AS definer
		FROM information_schema.ROUTINES WHERE ROUTINE_SCHEMA = ? AND ROUTINE_NAME LIKE 'mqnotify%'`, db.Name())
	if err != nil {
		return nil, fmt.Errorf("wake: read the routines: %w", err)
	}
	existing := make(map[string]routine, len(all))
	for _, is := range all {
		existing[is.Name] = is
	}
	return existing, nil
}

// ProcedureNames are the names of the procedures that `mqnotify init` creates.
type ProcedureNames struct {
	Seen     []string // the account sees these
	Missing  []string // these do not exist, or are not visible to the account
	Outdated []string // these are of another version
	Broken   []string // the account that owns these does not exist: calls fail
}

// Procedures reports which procedures exist.
func Procedures(ctx context.Context, db *notify.DB) (names ProcedureNames, err error) {
	existing, err := readRoutines(ctx, db)
	if err != nil {
		return names, err
	}
	for _, r := range routines.All(db.Name()) {
		is, exists := existing[r.Name]
		if !exists {
			names.Missing = append(names.Missing, r.Name)
			continue
		}
		names.Seen = append(names.Seen, r.Name)
		if !is.current(r) {
			names.Outdated = append(names.Outdated, r.Name)
		}
		account, err := accountExists(ctx, db, is.Definer)
		if err != nil {
			return names, err
		}
		if !account {
			names.Broken = append(names.Broken, r.Name)
		}
	}
	return names, nil
}

// findDefiner finds the account that must own the triggers. It is the account of the routine, because the trial of a leader calls the
// routine, and its result must hold for the triggers, too.
func (i *installer) findDefiner(ctx context.Context) error {
	var own string
	err := i.db.Pool().QueryRowContext(ctx, `SELECT DEFINER, CURRENT_USER() FROM information_schema.ROUTINES
		WHERE ROUTINE_SCHEMA = ? AND ROUTINE_NAME = ?`, i.db.Name(), waiting.WakeRoutine).Scan(&i.owner, &own)
	if err != nil {
		return fmt.Errorf("wake: read the owner of %s: %w", waiting.WakeRoutine, err)
	}
	if at := strings.LastIndex(i.owner, "@"); i.owner != own && at >= 0 {
		i.definer = ident.Quote(i.owner[:at]) + "@" + ident.Quote(i.owner[at+1:])
	}
	return nil
}

// RemovePublic drops the procedures for programs in other languages, and returns the names of those that existed.
func RemovePublic(ctx context.Context, db *notify.DB) (removed []string, err error) {
	i, err := begin(ctx, db, Options{})
	if err != nil {
		return nil, err
	}
	defer i.close()
	for _, r := range routines.Public(db.Name()) {
		err := i.exec(ctx, "DROP PROCEDURE "+ident.Quote(r.Name))
		switch {
		case server.Is(err, server.ErrNoRoutine):
		case err != nil:
			return removed, i.explain(fmt.Errorf("wake: drop routine %s: %w", r.Name, err))
		default:
			removed = append(removed, r.Name)
		}
	}
	return removed, nil
}
