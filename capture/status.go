package capture

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// State is the state of a capture trigger.
type State struct {
	Table   string // the table that has the trigger
	Trigger string
	Op      string // insert, update or delete
	Topic   string
	Definer string   // the account whose rights the trigger has
	Columns []string // the captured columns, in the message's order
	// MadeFor is the table that the trigger was made for. It differs from Table after a RENAME TABLE: the trigger went with the old
	// table, and changes of a new table of the old name are not captured. Repair moves the trigger to that table.
	MadeFor string
	// Missed are columns of the table that the trigger does not capture, because they were left out or added later.
	Missed []string
	// Gone are captured columns that the table does not have any more. Every write that fires the trigger fails.
	Gone []string
	// Changed are captured columns, each with the old and the new type, whose values are written in a wrong form since their type was
	// changed; and the primary key if it was changed. Repair makes the trigger for the new types.
	Changed []string
	// Reordered is set if the table's columns have another order than the message's.
	Reordered bool
	// NoTopic is set if the topic can't store every row or does not exist, as far as this account may see. Writes that fire the trigger
	// then fail.
	NoTopic bool
	// Broken is set if writes that fire the trigger fail: Gone is not empty, or NoTopic is set.
	Broken bool
	// Moved is set if the trigger is on another table than the one that it was made for.
	Moved bool
	// Stale is set if the trigger needs a repair: writes fail, or changes are captured wrong or not at all.
	Stale bool
	// Snapshot is the table's latest snapshot; nil if there is none, or if this account may not read the table mqnotify_snapshot.
	Snapshot *Progress

	made definition
}

// Status returns the states of the capture triggers on a table and of those that were made for it, or of all capture triggers of the
// database if name is empty, ordered by table. The server shows only triggers of tables on which the account has TRIGGER.
func Status(ctx context.Context, db *notify.DB, name string) (states []State, err error) {
	if name != "" {
		t, err := describe(ctx, db, name)
		if err != nil {
			return nil, err
		}
		name = t.Name
	}
	all, err := triggers(ctx, db.Pool(), db.Name(), "")
	if err != nil {
		return nil, err
	}
	snapshots, err := latestSnapshots(ctx, db)
	if err != nil {
		return nil, err
	}
	for _, s := range all {
		if s.made == nil || name != "" && s.Table != name && s.made.Table != name {
			continue
		}
		state, err := s.state(ctx, db)
		if err != nil {
			return nil, err
		}
		state.Snapshot = snapshots[s.Table]
		states = append(states, state)
	}
	return states, nil
}

// Remove drops the capture triggers on a table and those that were made for it, and returns their names. The topic and its messages
// stay. Its errors are Prepare's errors about the table, ErrBusy, and the server's.
func Remove(ctx context.Context, db *notify.DB, name string, options Options) (removed []string, err error) {
	states, err := Status(ctx, db, name)
	if err != nil {
		return nil, err
	}
	options, err = options.withPatience()
	if err != nil {
		return nil, err
	}
	for _, s := range states {
		if err := drop(ctx, db, s.Table, s.Trigger, options); err != nil {
			return removed, err
		}
		removed = append(removed, s.Trigger)
	}
	return removed, nil
}

// standing is an existing trigger.
type standing struct {
	Name    string `db:"name"`
	Table   string `db:"table_name"`
	Event   string `db:"event"`
	Definer string `db:"definer"`
	Ours    bool   `db:"ours"`

	made *definition // nil if it is no capture trigger
}

// madeFor reports whether the trigger is a capture trigger that was made for the table, under any name and on any table.
func (s standing) madeFor(name string) bool { return s.made != nil && s.made.Table == name }

// triggers lists the AFTER triggers of a table, or of all tables if name is empty.
func triggers(ctx context.Context, q sqlx.QueryerContext, database, name string) (all []standing, err error) {
	err = sqlx.SelectContext(ctx, q, &all, `SELECT TRIGGER_NAME AS name, EVENT_OBJECT_TABLE AS table_name, LOWER(EVENT_MANIPULATION) AS event,
			DEFINER AS definer, ACTION_STATEMENT LIKE ? AS ours
		FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_SCHEMA = ? AND ACTION_TIMING = 'AFTER' AND (EVENT_OBJECT_TABLE = ? OR ? = '')
		ORDER BY EVENT_OBJECT_TABLE, ACTION_ORDER`,
		"%'"+definitionMark+"%", database, name, name)
	if err != nil {
		return nil, fmt.Errorf("capture: list triggers: %w", err)
	}
	for i, s := range all {
		if !s.Ours {
			continue
		}
		if all[i].made, err = s.definition(ctx, q); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(all, func(a, b standing) int {
		if a.Table != b.Table {
			return strings.Compare(a.Table, b.Table)
		}
		return slices.Index(ops, a.Event) - slices.Index(ops, b.Event)
	})
	return all, nil
}

// definition reads a capture trigger's definition from SHOW CREATE TRIGGER, because MySQL garbles some characters in
// information_schema.
func (s standing) definition(ctx context.Context, q sqlx.QueryerContext) (*definition, error) {
	row := make(map[string]any)
	if err := q.QueryRowxContext(ctx, "SHOW CREATE TRIGGER "+ident.Quote(s.Name)).MapScan(row); err != nil {
		return nil, fmt.Errorf("capture: read trigger %s: %w", ident.Quote(s.Name), err)
	}
	text, ok := row["SQL Original Statement"].([]byte)
	if !ok {
		return nil, fmt.Errorf("capture: read trigger %s: this account may not see its text: it needs TRIGGER on the table", ident.Quote(s.Name))
	}
	made, err := decodeDefinition(string(text))
	if err != nil {
		return nil, fmt.Errorf("capture: read trigger %s: %w", ident.Quote(s.Name), err)
	}
	return &made, nil
}

// state compares the trigger's definition with the table's current columns.
func (s standing) state(ctx context.Context, db *notify.DB) (State, error) {
	state := State{Table: s.Table, Trigger: s.Name, Op: s.Event, Definer: s.Definer, Topic: s.made.Topic, MadeFor: s.made.Table, made: *s.made}
	t, err := describe(ctx, db, s.Table)
	if err != nil {
		return state, err
	}
	last := -1
	for _, c := range s.made.captured() {
		state.Columns = append(state.Columns, c.Name)
		at := slices.IndexFunc(t.Columns, func(now table.Column) bool { return strings.EqualFold(now.Name, c.Name) })
		switch {
		case at < 0:
			state.Gone = append(state.Gone, c.Name)
			continue
		case c.changed(t.Columns[at]):
			state.Changed = append(state.Changed, c.Name+" from "+c.Type+" to "+typeOf(t.Columns[at]))
		}
		state.Reordered = state.Reordered || at < last && !s.made.Chosen
		last = at
	}
	for _, c := range t.Columns {
		if !contains(state.Columns, c.Name) {
			state.Missed = append(state.Missed, c.Name)
		}
	}
	for _, name := range s.made.Key {
		if _, err := t.Column(name); err != nil && !contains(state.Gone, name) {
			state.Gone = append(state.Gone, name)
		}
	}
	if key := t.PrimaryKey(); !slices.EqualFunc(key, s.made.Key, strings.EqualFold) {
		state.Changed = append(state.Changed, "primary key from ("+strings.Join(s.made.Key, ", ")+") to ("+strings.Join(key, ", ")+")")
	}
	topic, err := table.Describe(ctx, db.Pool(), db.Name(), state.Topic)
	if err != nil && !errors.Is(err, notify.ErrNoTable) {
		return state, err
	}
	state.NoTopic = err != nil || !takesRows(topic)
	state.Broken = len(state.Gone) > 0 || state.NoTopic
	state.Moved = state.MadeFor != state.Table
	state.Stale = state.Broken || state.Moved || len(state.Changed) > 0
	return state, nil
}
