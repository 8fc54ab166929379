// Package wake creates, shows and removes the triggers that wake the listeners of a table at every change of it, and their routines.
package wake

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

var (
	// ErrDenied means that the account's privileges or the server's settings do not allow it. The error's text has the remedy.
	ErrDenied = errors.New("this account may not make wake triggers or their procedures")
	// ErrBusy means that transactions used the table all the time.
	ErrBusy = table.ErrBusy
	// ErrView means that the table is a view, which can't have triggers.
	ErrView = errors.New("a view can't have triggers")
)

// Options are the settings of Install and Remove.
type Options struct {
	// Events are the changes that wake: insert, update, delete. Empty means insert.
	Events []string
	// Patience is how long to try while transactions use the table. One attempt lasts at most 1 s, and delays the
	// transactions that begin meanwhile. 0 means 30 s.
	Patience time.Duration
	// Logger gets a line for every trigger. nil means slog.Default().
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if len(o.Events) == 0 {
		o.Events = []string{"insert"}
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// installer creates triggers and routines over one session.
type installer struct {
	db      *notify.DB
	session *core.Session
	options Options
	definer string // the account that owns the routines, if it is another one; it must also own the triggers
	owner   string // the same, as the server shows it
}

func begin(ctx context.Context, db *notify.DB, o Options) (*installer, error) {
	session, err := core.NewSession(ctx, db, core.SessionOptions{})
	if err != nil {
		return nil, err
	}
	i := &installer{db: db, session: session, options: o.withDefaults()}
	// New transactions on the table wait behind a statement that waits for the table. The server stores sql_mode with the trigger.
	if err := i.exec(ctx, "SET SESSION lock_wait_timeout = 1, sql_mode = ''"); err != nil {
		i.close()
		return nil, err
	}
	return i, nil
}

func (i *installer) close() { _ = i.session.Close() }

func (i *installer) exec(ctx context.Context, statement string, args ...any) error {
	return i.session.Do(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, statement, args...)
		return err
	})
}

// Install creates the wake triggers of the tables, and the routines. It keeps those that exist and are right, and replaces a trigger
// of another account or of an older version. Triggers of other tables that no longer work since the routines were replaced are repaired.
//
// Its errors are ErrDenied, ErrBusy, ErrView, those of table.Describe, and the server's.
func Install(ctx context.Context, db *notify.DB, o Options, tables ...string) error {
	i, err := begin(ctx, db, o)
	if err != nil {
		return err
	}
	defer i.close()
	if err := i.routines(ctx, tables); err != nil {
		return i.explain(err)
	}
	if err := i.findDefiner(ctx); err != nil {
		return err
	}
	for _, name := range tables {
		described, err := table.Describe(ctx, db.Pool(), db.Name(), name)
		if err != nil {
			return err
		}
		if described.IsView {
			return fmt.Errorf("wake: %s: %w: name the table behind it", described, ErrView)
		}
		for _, event := range i.options.Events {
			if err := i.trigger(ctx, described.Name, event); err != nil {
				return i.explain(err)
			}
		}
	}
	if len(tables) == 0 {
		return nil
	}
	return i.repair(ctx)
}

// repair creates those wake triggers of other tables again that do not work because their account does not own the routine that they
// call: it may have been replaced. repair only logs why it could not create a trigger, because Install is for other tables.
func (i *installer) repair(ctx context.Context) error {
	var others bool
	err := i.db.Pool().GetContext(ctx, &others, `SELECT EXISTS (SELECT 1 FROM information_schema.TRIGGERS
		WHERE EVENT_OBJECT_SCHEMA = ? AND LOCATE(?, ACTION_STATEMENT) > 0 AND DEFINER <> ?)`, i.db.Name(), waiting.Prefix(i.db.Name())+":", i.owner)
	if err != nil || !others {
		return err
	}
	states, err := Status(ctx, i.db)
	if err != nil {
		return err
	}
	for _, s := range states {
		if s.Problem == "" {
			continue
		}
		if err := i.trigger(ctx, s.Table, s.Event); err != nil {
			i.options.Logger.WarnContext(ctx, "a wake trigger does not work", "trigger", s.Trigger, "problem", s.Problem, "why", i.explain(err),
				"remedy", "mqnotify wake install "+s.Table+" --on "+s.Event)
		}
	}
	return nil
}

// InstallAll creates the triggers of the message tables and of mqnotify's own tables. If the account may not create them, it logs
// a warning and returns nil, because polling works without them.
func InstallAll(ctx context.Context, db *notify.DB, log *slog.Logger, topics ...string) error {
	err := Install(ctx, db, Options{Logger: log}, slices.Concat(topics, []string{schema.NotificationTable, schema.TaskTable})...)
	if err == nil {
		err = Install(ctx, db, Options{Events: []string{"update"}, Logger: log}, schema.RingTable)
	}
	return warn(ctx, log, err)
}

// Routines creates the routines, and no trigger. If the account may not create them, it logs a warning.
func Routines(ctx context.Context, db *notify.DB, log *slog.Logger) error {
	return warn(ctx, log, Install(ctx, db, Options{Logger: log}))
}

func warn(ctx context.Context, log *slog.Logger, err error) error {
	if errors.Is(err, ErrDenied) {
		log.WarnContext(ctx, "not all wake triggers could be made: rows that other programs insert are found by polling, up to a second later", "why", err)
		return nil
	}
	return err
}

// trigger creates a table's trigger for an event.
func (i *installer) trigger(ctx context.Context, table, event string) error {
	statement, err := waiting.Trigger(i.db.Name(), table, event)
	if err != nil {
		return err
	}
	if i.definer != "" {
		problem, err := AccountProblem(ctx, i.db, i.owner, table)
		if err != nil {
			return err
		}
		if problem != "" { // of tables after the first, or that are repaired
			return fmt.Errorf("wake: %w: a trigger on %s would belong to the owner of %s, and %s", ErrDenied, ident.Quote(table), waiting.WakeRoutine, problem)
		}
		statement = strings.Replace(statement, "CREATE TRIGGER", "CREATE DEFINER = "+i.definer+" TRIGGER", 1)
	}
	name := waiting.TriggerName(table, event)
	for try := 1; ; try++ {
		states, err := ofTable(ctx, i.db, table)
		if err != nil {
			return err
		}
		for _, s := range states {
			if s.Trigger != name {
				continue
			}
			if s.Problem == "" && strings.HasSuffix(words(statement), words(s.text)) {
				i.options.Logger.InfoContext(ctx, "the wake trigger already exists", "trigger", name, "table", table)
				return nil
			}
			if err := i.checkDefiner(ctx, table, event); err != nil {
				return fmt.Errorf("wake: make trigger %s: %w", ident.Quote(name), err)
			}
			if err := i.drop(ctx, table, name); err != nil {
				return err
			}
		}
		err = i.patiently(ctx, table, statement)
		if server.Is(err, server.ErrTriggerExists) && try < 3 {
			if err := i.free(ctx, table, name); err != nil {
				return err
			}
			continue
		}
		if server.Is(err, server.ErrTriggerExists) {
			return fmt.Errorf("wake: %w: a trigger %s exists on a table on which this account has no TRIGGER privilege: %w",
				ErrDenied, ident.Quote(name), err)
		}
		if err != nil {
			return fmt.Errorf("wake: make trigger %s: %w", ident.Quote(name), err)
		}
		i.options.Logger.InfoContext(ctx, "the wake trigger is ready", "trigger", name, "table", table)
		return nil
	}
}

// checkDefiner returns an error if this account may not create triggers of the definer. Otherwise a trigger would be dropped and not be
// created again. Its statement never creates a trigger, because the trigger that follows PRECEDES does not exist. Servers check the
// definer before that. The CREATE TRIGGER of the table's own trigger would not do: on MySQL its error is that the trigger exists.
func (i *installer) checkDefiner(ctx context.Context, table, event string) error {
	if i.definer == "" {
		return nil
	}
	name := ident.Quote(ident.Derived("mqnotify_wake_check_", table))
	err := i.patiently(ctx, table, "CREATE DEFINER = "+i.definer+" TRIGGER "+name+" AFTER "+event+" ON "+ident.Quote(table)+
		" FOR EACH ROW PRECEDES "+name+" SET @mqnotify = NULL")
	if server.Is(err, server.ErrSpecificAccess) || errors.Is(err, ErrBusy) {
		return err
	}
	return nil
}

// free drops the wake trigger that has a name of the table's triggers and is on another table, because RENAME TABLE has moved it there. It
// keeps a trigger on the table itself, which another process has just created.
func (i *installer) free(ctx context.Context, table, name string) error {
	var is struct {
		Table string `db:"table_name"`
		Text  string `db:"text"`
	}
	err := i.db.Pool().GetContext(ctx, &is, `SELECT EVENT_OBJECT_TABLE AS table_name, ACTION_STATEMENT AS text
		FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND TRIGGER_NAME = ?`, i.db.Name(), name)
	switch {
	case errors.Is(err, sql.ErrNoRows): // it is not visible to this account, or was dropped just now
		return nil
	case err != nil:
		return fmt.Errorf("wake: read trigger %s: %w", ident.Quote(name), err)
	case is.Table == table:
		return nil
	case !strings.Contains(is.Text, "mqnotify:wait:"): // with the name of whatever database, because that may be restored from another
		return fmt.Errorf("wake: a trigger %s exists on %s and is no wake trigger: drop it first (DROP TRIGGER %s)",
			ident.Quote(name), ident.Quote(is.Table), ident.Quote(name))
	}
	i.options.Logger.InfoContext(ctx, "the wake trigger is on another table, which was renamed: making it on this one",
		"trigger", name, "table", table, "other", is.Table)
	return i.drop(ctx, is.Table, name)
}

func (i *installer) drop(ctx context.Context, table, name string) error {
	if err := i.patiently(ctx, table, "DROP TRIGGER IF EXISTS "+ident.Quote(name)); err != nil {
		return fmt.Errorf("wake: drop trigger %s: %w", ident.Quote(name), err)
	}
	return nil
}

// patiently runs a statement that waits for the transactions that use the table, for 1 s at a time.
func (i *installer) patiently(ctx context.Context, name, statement string) error {
	return table.Patiently(ctx, i.options.Logger, name, i.options.Patience, time.Second, func(ctx context.Context) error {
		return i.exec(ctx, statement)
	})
}

// explain adds the remedy to an error about privileges or settings.
func (i *installer) explain(err error) error {
	switch {
	case server.Is(err, server.ErrBinlogNeedsSuper):
		return fmt.Errorf("%w: %w: the server writes a binary log and lets only administrators make triggers. "+
			"Let one of them run SET GLOBAL log_bin_trust_function_creators = 1 (and set it in the server's configuration), "+
			"or run this command", ErrDenied, err)
	case server.Is(err, server.ErrSystemDatabase):
		return fmt.Errorf("%w: %w: make the tables in a database of your own", ErrDenied, err)
	case i.definer != "" && server.Is(err, server.ErrSpecificAccess):
		return fmt.Errorf("%w: %w: the wake triggers of this database belong to %s, and other accounts need the privilege to make "+
			"triggers in its name. Let that account run this command", ErrDenied, err, i.definer)
	case server.NoPrivilege(err), server.Is(err, server.ErrRoutineDenied):
		return fmt.Errorf("%w: %w: grant the privilege (mqnotify grants --role admin prints it), or run this command with an account that has it",
			ErrDenied, err)
	}
	return err
}

// Remove drops the wake triggers of a table and returns their names. It keeps the routines. Listening processes are woken
// at once and poll from then on.
func Remove(ctx context.Context, db *notify.DB, o Options, name string) (removed []string, err error) {
	i, err := begin(ctx, db, o)
	if err != nil {
		return nil, err
	}
	defer i.close()
	described, err := table.Describe(ctx, db.Pool(), db.Name(), name)
	if err != nil {
		return nil, err
	}
	states, err := Status(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		if s.Table != described.Name {
			continue
		}
		if err := i.drop(ctx, s.Table, s.Trigger); err != nil {
			return removed, i.explain(err)
		}
		removed = append(removed, s.Trigger)
	}
	if len(removed) > 0 {
		err = i.exec(ctx, "CALL "+waiting.WakeRoutine+"(?)", described.Name)
		if server.Is(err, server.ErrNoRoutine, server.ErrRoutineDenied) {
			err = nil // without the routine they notice within a minute and a half
		}
	}
	return removed, err
}
