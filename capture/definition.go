package capture

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/table"
)

// definition is what a trigger was made for. The trigger's text has it, so that it is copied, renamed and dropped with the trigger.
type definition struct {
	Table      string   `json:"table"`
	Topic      string   `json:"topic"`
	Columns    []column `json:"columns"`           // in the message's order
	Chosen     bool     `json:"chosen,omitempty"`  // the columns were named: no other is ever captured
	Without    []string `json:"without,omitempty"` // the columns to leave out
	Key        []string `json:"key,omitempty"`     // the columns of the primary key
	Split      bool     `json:"split,omitempty"`   // an UPDATE of the key is a delete and an insert
	Tombstones bool     `json:"tombstones,omitempty"`
	// Since is a random mark of Install. Triggers that have the same one have captured every change since then; a repair that brings
	// triggers back to a table, whose changes were not captured meanwhile, makes a new mark.
	Since string `json:"since,omitempty"`
}

type column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// define makes the definition of the table as it is now, and the columns' descriptions.
func (d definition) define(t *table.Table) (definition, []table.Column, error) {
	captured, err := chosen(t, d.names())
	if err != nil {
		return d, nil, err
	}
	d.Table, d.Columns, d.Key = t.Name, nil, t.PrimaryKey()
	captured = slices.DeleteFunc(slices.Clone(captured), func(c table.Column) bool { return contains(d.Without, c.Name) })
	for _, c := range captured {
		d.Columns = append(d.Columns, column{c.Name, typeOf(c)})
	}
	return d, captured, nil
}

// names are the columns that were named; none means all.
func (d definition) names() (names []string) {
	if d.Chosen {
		for _, c := range d.Columns {
			names = append(names, c.Name)
		}
	}
	return names
}

// trigger makes the statement of a defined trigger.
func (d definition) trigger(t *table.Table, columns []table.Column, op, name string) (newTrigger, error) {
	encoded, err := d.encode()
	if err != nil {
		return newTrigger{}, err
	}
	trigger := schema.CaptureTrigger{
		Table: t.Name, Topic: d.Topic, Event: op, Trigger: name, Definition: encoded,
		Split: d.Split, Tombstones: d.Tombstones,
	}
	key, err := keyColumns(t, d.Key)
	if err != nil {
		return newTrigger{}, err
	}
	trigger.Old, trigger.New = rowOf(columns, key, "OLD"), rowOf(columns, key, "NEW")
	trigger.Same = table.SameTypes(append(slices.Clone(columns), key...), map[string]string{opInsert: "NEW", opUpdate: "NEW", opDelete: "OLD"}[op])
	statement, err := trigger.Statement()
	return newTrigger{trigger.Name(), op, statement}, err
}

func keyColumns(t *table.Table, names []string) ([]table.Column, error) {
	if len(names) == 0 {
		return nil, nil
	}
	return chosen(t, names)
}

func rowOf(columns, key []table.Column, row string) schema.CaptureRow {
	r := schema.CaptureRow{Row: table.JSONExpression(columns, row), AnyRow: table.AnyJSONExpression(columns, row)}
	if len(key) > 0 {
		r.Key, r.AnyKey = table.KeyExpression(key, row), table.AnyKeyExpression(key, row)
	}
	return r
}

// typeOf is a column's type, from which table.TypedColumn makes its column again.
func typeOf(c table.Column) string {
	if c.IsJSON {
		return "json"
	}
	return c.ColumnType
}

// changed reports whether a column of the table is written in another way than the trigger does it.
func (c column) changed(now table.Column) bool {
	was := table.TypedColumn(c.Name, c.Type)
	now = table.TypedColumn(c.Name, typeOf(now))
	return table.JSONExpression([]table.Column{was}, "NEW") != table.JSONExpression([]table.Column{now}, "NEW")
}

const definitionMark = "mqnotify capture "

// encode writes the definition without any character that a literal or a client could read in another way.
func (d definition) encode() (string, error) {
	text, err := json.Marshal(d)
	if err != nil {
		return "", fmt.Errorf("capture: encode the definition: %w", err)
	}
	var b strings.Builder
	for _, c := range text {
		if c < ' ' || c > '~' || strings.IndexByte("'`\\%/;", c) >= 0 {
			fmt.Fprintf(&b, "%%%02X", c)
			continue
		}
		b.WriteByte(c)
	}
	return definitionMark + b.String(), nil
}

// decodeDefinition finds the definition in a trigger's text.
func decodeDefinition(text string) (d definition, err error) {
	_, rest, found := strings.Cut(text, "'"+definitionMark)
	encoded, _, ended := strings.Cut(rest, "'")
	if !found || !ended {
		return d, fmt.Errorf("capture: the trigger does not say what it captures")
	}
	plain, err := url.PathUnescape(encoded)
	if err == nil {
		err = json.Unmarshal([]byte(plain), &d)
	}
	if err == nil {
		err = ident.Check(d.Table)
	}
	if err != nil {
		return d, fmt.Errorf("capture: read what the trigger captures: %w", err)
	}
	return d, nil
}

func contains(names []string, name string) bool {
	return slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(name, other) })
}
