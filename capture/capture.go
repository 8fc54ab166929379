package capture

import (
	"context"
	"crypto/rand"
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

// The values of a message's op.
const (
	opInsert = "insert"
	opUpdate = "update"
	opDelete = "delete"
	opRead   = "read" // a row of a snapshot, in new
)

// ops are the ops of changes.
var ops = []string{opInsert, opUpdate, opDelete}

// ErrBusy means that transactions used the table for all of Patience.
var ErrBusy = table.ErrBusy

// TriggerExistsError means that the table already has a trigger for an op.
type TriggerExistsError struct {
	Trigger, Table string // the existing trigger, and the table that Install should capture
	Op             string // insert, update or delete
	Ours           bool   // Trigger is a capture trigger that was made for Table
}

func (e *TriggerExistsError) Error() string {
	remedy := "drop it, or keep both (--beside)"
	if e.Ours {
		remedy = "remove the capture first (mqnotify capture remove " + e.Table + "), or make its triggers again (mqnotify capture repair " + e.Table + ")"
	}
	return fmt.Sprintf("capture: the trigger %s runs already after %s on %s: %s",
		ident.Quote(e.Trigger), strings.ToUpper(e.Op), ident.Quote(e.Table), remedy)
}

// Options select what to capture. The zero value captures every change of every column.
type Options struct {
	// Ops are the changes that become messages: "insert", "update" and "delete". Empty means all.
	Ops []string
	// Columns are the columns of a message, in this order. Empty means all columns that the table has now.
	Columns []string
	// Without are columns to leave out, now and after every repair.
	Without []string
	// Tombstones writes a second message for each delete, with the header tombstone, the row's key, and an empty payload. The
	// table needs a primary key.
	Tombstones bool
	// Into is the message table, which Install makes if it does not exist. Empty means the table's name followed by "_changes".
	Into string
	// Beside makes the triggers even if the table has other triggers after the same changes. Servers run triggers in the order in
	// which they were made.
	Beside bool
	// Patience is how long to try while transactions use the table. The server makes a trigger only while no transaction uses the
	// table. It waits for that for 2 s at a time, in which new transactions on the table wait too. 0 means 30 s.
	Patience time.Duration
	// Logger gets a line if the table is in use; nil means slog.Default().
	Logger *slog.Logger
}

func (o Options) withPatience() (Options, error) {
	if o.Patience < 0 {
		return o, fmt.Errorf("capture: %w: Patience is negative", notify.ErrOptions)
	}
	if o.Patience == 0 {
		o.Patience = 30 * time.Second
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o, nil
}

// Plan describes what Install makes.
type Plan struct {
	Table string // in the server's letter case
	// Engine is the table's storage engine. In one without transactions (MyISAM, Aria, MEMORY) a rollback removes the message of a
	// change, but not the change.
	Engine   string
	Topic    string
	Columns  []string
	NewTopic bool     // the topic does not exist, so Install makes it
	Triggers []string // names
	// Script is the SQL that Install runs, for the mysql and mariadb clients: to read, or for an administrator to run. It sets the
	// session's sql_mode, in which the triggers will run.
	Script string
	// Cascades are the tables that this table's foreign keys with an action (CASCADE, SET NULL, SET DEFAULT) refer to. No trigger
	// fires for rows that such an action changes, so these changes are not captured.
	Cascades []string

	db       *notify.DB
	options  Options
	triggers []newTrigger
}

// newTrigger is a trigger to make.
type newTrigger struct {
	name, op  string
	statement string // CREATE TRIGGER
}

// Prepare returns what Install would make, and changes nothing. Its errors are notify.ErrNoTable, notify.ErrNotTopic, a
// *TriggerExistsError, notify.ErrOptions and the server's.
func Prepare(ctx context.Context, db *notify.DB, name string, options Options) (*Plan, error) {
	if len(options.Ops) == 0 {
		options.Ops = ops
	}
	for _, op := range options.Ops {
		if !slices.Contains(ops, op) {
			return nil, fmt.Errorf("capture: %w: no op %q: insert, update or delete", notify.ErrOptions, op)
		}
	}
	options, err := options.withPatience()
	if err != nil {
		return nil, err
	}
	t, err := describe(ctx, db, name)
	if err != nil {
		return nil, err
	}
	if options.Into == "" {
		options.Into = t.Name + "_changes"
	}
	if err := ident.Check(options.Into); err != nil {
		return nil, fmt.Errorf("capture: name a topic (--into): %w", err)
	}
	plan := &Plan{Table: t.Name, Engine: t.Engine, Topic: options.Into, db: db, options: options}
	if err := plan.checkTopic(ctx); err != nil {
		return nil, err
	}
	defined, columns, err := options.define(t, plan.Topic)
	if err != nil {
		return nil, err
	}
	for _, c := range columns {
		plan.Columns = append(plan.Columns, c.Name)
	}
	if plan.Cascades, err = cascades(ctx, db, t.Name); err != nil {
		return nil, err
	}
	for _, op := range ops {
		if !slices.Contains(options.Ops, op) {
			continue
		}
		trigger, err := defined.trigger(t, columns, op, "")
		if err != nil {
			return nil, err
		}
		plan.triggers = append(plan.triggers, trigger)
		plan.Triggers = append(plan.Triggers, trigger.name)
	}
	plan.Script = plan.script()
	return plan, plan.checkFree(ctx)
}

// define returns the definition of a capture with these options, and the columns to capture.
func (o Options) define(t *table.Table, topic string) (definition, []table.Column, error) {
	named, err := chosen(t, o.Columns)
	if err != nil {
		return definition{}, nil, err
	}
	d := definition{Topic: topic, Chosen: len(o.Columns) > 0, Without: o.Without, Tombstones: o.Tombstones, Since: rand.Text()}
	if _, err := chosen(t, o.Without); err != nil {
		return d, nil, err
	}
	for _, c := range named {
		d.Columns = append(d.Columns, column{Name: c.Name})
	}
	d.Split = len(t.PrimaryKey()) > 0 && !slices.ContainsFunc(ops, func(op string) bool { return !slices.Contains(o.Ops, op) })
	if o.Tombstones && len(t.PrimaryKey()) == 0 {
		return d, nil, fmt.Errorf("capture: %w: %s has no primary key, and so no key for tombstones", notify.ErrOptions, t)
	}
	return d.define(t)
}

// cascades returns Plan.Cascades of a table.
func cascades(ctx context.Context, db *notify.DB, name string) (parents []string, err error) {
	err = db.Pool().SelectContext(ctx, &parents, `SELECT DISTINCT REFERENCED_TABLE_NAME FROM information_schema.REFERENTIAL_CONSTRAINTS
		WHERE CONSTRAINT_SCHEMA = ? AND TABLE_NAME = ?
			AND (DELETE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT') OR UPDATE_RULE IN ('CASCADE', 'SET NULL', 'SET DEFAULT'))
		ORDER BY REFERENCED_TABLE_NAME`, db.Name(), name)
	if err != nil {
		return nil, fmt.Errorf("capture: read the foreign keys of %s: %w", ident.Quote(name), err)
	}
	return parents, nil
}

func describe(ctx context.Context, db *notify.DB, name string) (*table.Table, error) {
	t, err := table.Describe(ctx, db.Pool(), db.Name(), name)
	if err != nil {
		return nil, err
	}
	if t.IsView {
		return nil, fmt.Errorf("%s is a view, which can't have triggers: name the table behind it: %w", t, notify.ErrNotTopic)
	}
	if len(t.Columns) == 0 {
		return nil, fmt.Errorf("capture: this account sees no column of %s: it needs SELECT on the table: %w", t, table.ErrNoColumn)
	}
	return t, nil
}

// chosen returns the columns with these names, or all columns if names is empty.
func chosen(t *table.Table, names []string) (columns []table.Column, err error) {
	if len(names) == 0 {
		return t.Columns, nil
	}
	for _, name := range names {
		c, err := t.Column(name)
		if err != nil {
			return nil, err
		}
		if slices.Contains(columns, c) {
			return nil, fmt.Errorf("capture: %w: column %s is named twice", notify.ErrOptions, ident.Quote(c.Name))
		}
		columns = append(columns, c)
	}
	return columns, nil
}

// checkTopic returns an error unless the topic can store every row, or does not exist.
func (p *Plan) checkTopic(ctx context.Context) error {
	topic, err := table.Describe(ctx, p.db.Pool(), p.db.Name(), p.Topic)
	if errors.Is(err, notify.ErrNoTable) {
		p.NewTopic = true
		return nil
	}
	if err != nil {
		return err
	}
	switch {
	case topic.Name == p.Table:
		return fmt.Errorf("capture: %w: a table can't be the topic of its own changes: name another topic (--into)", notify.ErrOptions)
	case !topic.IsMessageTable():
		return fmt.Errorf("capture: %s: %w: name another topic (--into), or a new one for install to make", topic, notify.ErrNotTopic)
	case !takesRows(topic):
		return fmt.Errorf("capture: %s: %w: it can't store every row: ALTER TABLE %s MODIFY payload %s NOT NULL, MODIFY headers JSON",
			topic, notify.ErrNotTopic, ident.Quote(topic.Name), payloadType(topic))
	}
	p.Topic = topic.Name
	return nil
}

// takesRows reports whether a table can store messages of any length with any text.
func takesRows(topic *table.Table) bool {
	return topic.IsMessageTable() && !slices.ContainsFunc(topic.Columns, func(c table.Column) bool {
		switch c.Name {
		case "payload":
			return c.DataType != "longblob" && (c.DataType != "longtext" || c.CharSet != "utf8mb4")
		case "headers": // MariaDB's JSON is a text
			return c.CharSet != "" && c.CharSet != "utf8mb4"
		}
		return false
	})
}

// payloadType returns the type that a topic's payload should have. A text keeps its meaning in it.
func payloadType(topic *table.Table) string {
	if c, err := topic.Column("payload"); err == nil && c.CharSet != "" && !strings.HasPrefix(c.CharSet, "utf8") {
		return "LONGTEXT CHARACTER SET utf8mb4"
	}
	return "LONGBLOB"
}

// checkFree returns a *TriggerExistsError if a trigger exists that Options.Beside does not allow.
func (p *Plan) checkFree(ctx context.Context) error {
	all, err := triggers(ctx, p.db.Pool(), p.db.Name(), "")
	if err != nil {
		return err
	}
	for _, wanted := range p.triggers {
		for _, s := range all {
			ours := s.Event == wanted.op && s.madeFor(p.Table)
			others := s.Event == wanted.op && s.Table == p.Table && !p.options.Beside &&
				!strings.EqualFold(s.Name, waiting.TriggerName(s.Table, s.Event)) // a wake trigger writes nothing
			if ours || others || strings.EqualFold(s.Name, wanted.name) {
				return &TriggerExistsError{s.Name, p.Table, wanted.op, ours}
			}
		}
	}
	return nil
}

func (p *Plan) script() string {
	var script strings.Builder
	if p.NewTopic {
		script.WriteString(schema.Topic(p.Topic) + ";\n\n")
	}
	script.WriteString(setMode + ";\n\nDELIMITER //\n")
	for _, t := range p.triggers {
		script.WriteString(strings.TrimSuffix(t.statement, ";\n") + " //\n\n")
	}
	script.WriteString("DELIMITER ;\n")
	return script.String()
}

const setMode = "SET SESSION sql_mode = '" + schema.CaptureMode + "'"

// Install makes the triggers, and the topic if it does not exist. If a trigger can't be made, Install drops those that it has
// made. Its errors are Prepare's and ErrBusy.
func Install(ctx context.Context, db *notify.DB, name string, options Options) (*Plan, error) {
	plan, err := Prepare(ctx, db, name, options)
	if err != nil {
		return nil, err
	}
	if plan.NewTopic {
		if _, err := db.Pool().ExecContext(ctx, schema.Topic(plan.Topic)); err != nil {
			return nil, fmt.Errorf("capture: make topic %s: %w", ident.Quote(plan.Topic), err)
		}
	}
	session, err := core.NewSession(ctx, db, core.SessionOptions{})
	if err != nil {
		return nil, err
	}
	defer func() { _ = session.Close() }()
	if err := execute(ctx, session, setMode); err != nil {
		return nil, fmt.Errorf("capture: set sql_mode: %w", err)
	}
	mark := marked(ctx, session)
	for i, t := range plan.triggers {
		err := plan.options.patiently(ctx, session, plan.Table, t.statement)
		if server.Is(err, server.ErrTriggerExists) { // another process made it after checkFree
			err = &TriggerExistsError{t.name, plan.Table, t.op, true}
		} else if err != nil {
			err = fmt.Errorf("capture: make trigger %s: %w", ident.Quote(t.name), err)
		}
		if err == nil {
			continue
		}
		// Without an answer it is unknown whether this trigger was made.
		unknown := server.Number(err) == 0 && !errors.As(err, new(*TriggerExistsError)) || server.ConnectionLost(err)
		if undone := plan.undo(ctx, session, mark, i, unknown); undone != nil {
			err = fmt.Errorf("%w; and %w", err, undone)
		}
		return nil, err
	}
	return plan, nil
}

// drop drops a trigger, in a session of its own.
func drop(ctx context.Context, db *notify.DB, table, trigger string, options Options) error {
	session, err := core.NewSession(ctx, db, core.SessionOptions{})
	if err == nil {
		defer func() { _ = session.Close() }()
		err = options.patiently(ctx, session, table, "DROP TRIGGER IF EXISTS "+ident.Quote(trigger))
	}
	if err != nil {
		return fmt.Errorf("capture: drop trigger %s: %w", ident.Quote(trigger), err)
	}
	return nil
}

func execute(ctx context.Context, session *core.Session, statement string) error {
	return session.Do(ctx, func(conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, statement)
		return err
	})
}

// patiently runs a statement that waits until no transaction uses the table. It tries for 2 s at a time, the session's
// lock_wait_timeout, until Patience is over.
func (o Options) patiently(ctx context.Context, session *core.Session, name, statement string) error {
	return table.Patiently(ctx, o.Logger, name, o.Patience, 2*time.Second, func(ctx context.Context) error {
		return execute(ctx, session, statement)
	})
}
