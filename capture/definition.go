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

// definition describes what a capture trigger captures. It is stored in the trigger's text, so that it is copied, renamed and
// dropped with the trigger.
type definition struct {
	Table      string   `json:"table"`
	Topic      string   `json:"topic"`
	Columns    []column `json:"columns"`           // in the message's order; if Chosen is set, also those of Without
	Chosen     bool     `json:"chosen,omitempty"`  // Options.Columns was set: a repair adds no columns
	Without    []string `json:"without,omitempty"` // Options.Without
	Key        []string `json:"key,omitempty"`     // the primary key's columns
	Split      bool     `json:"split,omitempty"`   // an UPDATE of the key becomes a delete and an insert
	Tombstones bool     `json:"tombstones,omitempty"`
	// Since is a random mark. Triggers with the same mark have captured every change since Install made it. A repair that moves
	// triggers back to a table makes a new mark, because changes of that table were not captured meanwhile.
	Since string `json:"since,omitempty"`
}

type column struct {
	Name string `json:"name"`
	Type string `json:"type"`
}

// define returns the definition for the table's current columns, and these columns.
func (d definition) define(t *table.Table) (definition, []table.Column, error) {
	captured, err := chosen(t, d.names())
	if err != nil {
		return d, nil, err
	}
	d.Table, d.Columns, d.Key = t.Name, nil, t.PrimaryKey()
	left := func(c table.Column) bool { return contains(d.Without, c.Name) }
	for _, c := range captured {
		if d.Chosen || !left(c) { // a repair may capture a chosen column again
			d.Columns = append(d.Columns, column{c.Name, typeOf(c)})
		}
	}
	return d, slices.DeleteFunc(slices.Clone(captured), left), nil
}

// captured returns the columns that a message has.
func (d definition) captured() []column {
	return slices.DeleteFunc(slices.Clone(d.Columns), func(c column) bool { return contains(d.Without, c.Name) })
}

// names returns the columns of Options.Columns; empty means all.
func (d definition) names() (names []string) {
	if d.Chosen {
		for _, c := range d.Columns {
			names = append(names, c.Name)
		}
	}
	return names
}

// trigger returns the trigger for an op. An empty name means the default name.
func (d definition) trigger(t *table.Table, columns []table.Column, op, name string) (newTrigger, error) {
	encoded, err := d.encode()
	if err != nil {
		return newTrigger{}, err
	}
	trigger := schema.CaptureTrigger{
		Table: t.Name, Topic: d.Topic, Event: op, Trigger: name, Definition: encoded,
		Split: d.Split, Tombstones: d.Tombstones,
	}
	var key []table.Column
	if len(d.Key) > 0 {
		if key, err = chosen(t, d.Key); err != nil {
			return newTrigger{}, err
		}
	}
	trigger.Old, trigger.New = rowOf(columns, key, "OLD"), rowOf(columns, key, "NEW")
	trigger.Same = table.SameTypes(append(slices.Clone(columns), key...), map[string]string{opInsert: "NEW", opUpdate: "NEW", opDelete: "OLD"}[op])
	statement, err := trigger.Statement()
	return newTrigger{trigger.Name(), op, statement}, err
}

func rowOf(columns, key []table.Column, row string) schema.CaptureRow {
	r := schema.CaptureRow{Row: table.JSONExpression(columns, row), AnyRow: table.AnyJSONExpression(columns, row)}
	if len(key) > 0 {
		r.Key, r.AnyKey = table.KeyExpression(key, row), table.AnyKeyExpression(key, row)
	}
	return r
}

// typeOf returns a column's type in the form that table.TypedColumn reads.
func typeOf(c table.Column) string {
	if c.IsJSON {
		return "json"
	}
	return c.ColumnType
}

// changed reports whether the column's current type is written as JSON in another form than the trigger writes it.
func (c column) changed(now table.Column) bool {
	was := table.TypedColumn(c.Name, c.Type)
	now = table.TypedColumn(c.Name, typeOf(now))
	return table.JSONExpression([]table.Column{was}, "NEW") != table.JSONExpression([]table.Column{now}, "NEW")
}

const definitionMark = "mqnotify capture "

// encode returns the definition as text that needs no escape in an SQL literal or a client.
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

// decodeDefinition reads the definition from a trigger's text.
func decodeDefinition(text string) (d definition, err error) {
	_, rest, found := strings.Cut(text, "'"+definitionMark)
	encoded, _, ended := strings.Cut(rest, "'")
	if !found || !ended {
		return d, fmt.Errorf("capture: the trigger's text has no definition")
	}
	plain, err := url.PathUnescape(encoded)
	if err == nil {
		err = json.Unmarshal([]byte(plain), &d)
	}
	if err == nil {
		err = ident.Check(d.Table)
	}
	if err != nil {
		return d, fmt.Errorf("capture: read the trigger's definition: %w", err)
	}
	return d, nil
}

func contains(names []string, name string) bool {
	return slices.ContainsFunc(names, func(other string) bool { return strings.EqualFold(name, other) })
}
