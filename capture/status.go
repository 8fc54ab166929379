package capture

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
	schema "github.com/mqnotify/mqnotify/sql"
)

// State is a capture trigger that stands.
type State struct {
	Table   string
	Trigger string
	Op      Op
	Topic   string
	Definer string   // the account whose rights it has
	Columns []string // that it captures, in the message's order
	// Missed are columns that the table has and the trigger does not capture: left out,
	// or added since.
	Missed []string
	// Gone are captured columns that the table has no more: every such write fails.
	Gone []string
	// NoTopic tells that the topic is not there, or can't take every row: such writes fail.
	NoTopic bool
}

// Broken reports whether the writes that fire the trigger fail.
func (s State) Broken() bool { return len(s.Gone) > 0 || s.NoTopic }

// Status reads which captures stand on a table, or on all tables of the database if
// name is empty, in the order of their names. It takes what the account may see: TRIGGER
// on a table shows its triggers.
func Status(ctx context.Context, db *notify.DB, name string) (states []State, err error) {
	if name != "" {
		t, err := describe(ctx, db, name)
		if err != nil {
			return nil, err
		}
		name = t.Name
	}
	standing, err := triggers(ctx, db, name)
	if err != nil {
		return nil, err
	}
	for _, s := range standing {
		if !s.ours() {
			continue
		}
		state, err := s.state(ctx, db)
		if err != nil {
			return nil, err
		}
		states = append(states, state)
	}
	return states, nil
}

// Remove drops the capture triggers of a table and returns their names. The topic and
// its messages stay. Its errors are Prepare's about the table, ErrBusy, and the server's.
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

// standing is a trigger as the server lists it.
type standing struct {
	Name    string `db:"name"`
	Table   string `db:"table_name"`
	Event   Op     `db:"event"`
	Definer string `db:"definer"`
}

// triggers lists the triggers that run after changes of a table, or of all.
func triggers(ctx context.Context, db *notify.DB, name string) (all []standing, err error) {
	query := `SELECT TRIGGER_NAME AS name, EVENT_OBJECT_TABLE AS table_name, LOWER(EVENT_MANIPULATION) AS event,
			DEFINER AS definer
		FROM information_schema.TRIGGERS WHERE TRIGGER_SCHEMA = ? AND ACTION_TIMING = 'AFTER'`
	args := []any{db.Name()}
	if name != "" {
		query += " AND EVENT_OBJECT_TABLE = ?"
		args = append(args, name)
	}
	if err := db.Pool().SelectContext(ctx, &all, query+" ORDER BY EVENT_OBJECT_TABLE, ACTION_ORDER", args...); err != nil {
		return nil, fmt.Errorf("capture: list triggers: %w", err)
	}
	slices.SortStableFunc(all, func(a, b standing) int {
		if a.Table != b.Table {
			return strings.Compare(a.Table, b.Table)
		}
		return slices.Index(Ops(), a.Event) - slices.Index(Ops(), b.Event)
	})
	return all, nil
}

func (s standing) ours() bool {
	return strings.EqualFold(s.Name, schema.CaptureName(s.Table, string(s.Event)))
}

// inBody finds names in a trigger's body, and what stands before them. A literal is
// passed over, whatever is in it.
var inBody = regexp.MustCompile("'[^']*'|(INSERT INTO |NEW\\.|OLD\\.|)((?:`[^`]*`)+)")

func unquote(name string) string {
	return strings.ReplaceAll(name[1:len(name)-1], "``", "`")
}

// body is the statement that made the trigger: in information_schema MySQL spoils
// names that have a backtick in them.
func (s standing) body(ctx context.Context, db *notify.DB) (string, error) {
	row := make(map[string]any)
	if err := db.Pool().QueryRowxContext(ctx, "SHOW CREATE TRIGGER "+ident.Quote(s.Name)).MapScan(row); err != nil {
		return "", fmt.Errorf("capture: read trigger %s: %w", ident.Quote(s.Name), err)
	}
	text, ok := row["SQL Original Statement"].([]byte)
	if !ok {
		return "", fmt.Errorf("capture: read trigger %s: this account may not see what it does: TRIGGER on the table lets it", ident.Quote(s.Name))
	}
	return string(text), nil
}

// state reads from a trigger's body what it does.
func (s standing) state(ctx context.Context, db *notify.DB) (State, error) {
	state := State{Table: s.Table, Trigger: s.Name, Op: s.Event, Definer: s.Definer}
	body, err := s.body(ctx, db)
	if err != nil {
		return state, err
	}
	for _, match := range inBody.FindAllStringSubmatch(body, -1) {
		if match[1] == "" {
			continue
		}
		name := unquote(match[2])
		if match[1] == "INSERT INTO " {
			state.Topic = name
		} else if !slices.Contains(state.Columns, name) {
			state.Columns = append(state.Columns, name)
		}
	}
	t, err := describe(ctx, db, s.Table)
	if err != nil {
		return state, err
	}
	var there []string
	for _, c := range t.Columns {
		there = append(there, c.Name)
		if !slices.ContainsFunc(state.Columns, func(name string) bool { return strings.EqualFold(name, c.Name) }) {
			state.Missed = append(state.Missed, c.Name)
		}
	}
	for _, name := range state.Columns {
		if !slices.ContainsFunc(there, func(other string) bool { return strings.EqualFold(name, other) }) {
			state.Gone = append(state.Gone, name)
		}
	}
	if ident.Check(state.Topic) == nil {
		topic, err := table.Describe(ctx, db.Pool(), db.Name(), state.Topic)
		state.NoTopic = err != nil || !takesRows(topic)
	}
	return state, nil
}
