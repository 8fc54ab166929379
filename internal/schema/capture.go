package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// CaptureMode is the sql_mode of the capture triggers, which they keep whatever the writer's sql_mode is. With it no value is cut
// short without an error, and an invalid date that is already in the table does not make a write fail.
const CaptureMode = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES"

// CaptureRow is SQL that writes the row before (Old) or after a change (New).
type CaptureRow struct {
	// Row writes the row as JSON. AnyRow does the same after a column's type was changed.
	Row, AnyRow string
	// Key and AnyKey write the row's key as a JSON string. Empty means that messages have no key.
	Key, AnyKey string
}

// CaptureTrigger is the definition of a capture trigger.
type CaptureTrigger struct {
	Table, Topic string
	Event        string // "INSERT", "UPDATE" or "DELETE", in any case
	Old, New     CaptureRow
	// Same is SQL that is true while the columns have the types that Row and Key are for. Empty means always.
	Same string
	// Split turns an UPDATE of the key into a delete and an insert, each with its own key.
	Split bool
	// Tombstones makes two messages of every delete: the second has the header tombstone and an empty payload.
	Tombstones bool
	// Trigger is the trigger's name; empty means the result of CaptureName.
	Trigger string
	// Definition is stored in the trigger's text.
	Definition string
}

// Name returns the trigger's name.
func (c CaptureTrigger) Name() string {
	if c.Trigger != "" {
		return c.Trigger
	}
	return CaptureName(c.Table, c.Event)
}

// CaptureName returns the name of a table's capture trigger for an event.
func CaptureName(table, event string) string {
	return ident.Derived("mqnotify_capture_"+strings.ToLower(event)+"_", table)
}

// Statement returns the commented statement that creates the trigger.
func (c CaptureTrigger) Statement() (string, error) {
	event := strings.ToLower(c.Event)
	same := cmp.Or(c.Same, "TRUE")
	common := []string{
		"trigger", ident.Quote(c.Name()), "event", strings.ToUpper(event), "table", ident.Quote(c.Table),
		"topic", ident.Quote(c.Topic), "definition", ident.Literal(c.Definition), "same", same,
	}
	with := func(file string, pairs ...string) string { return fill(read(file), append(common, pairs...)...) }
	switch event {
	case "insert":
		return with("capture_row.sql", "row", "new", "value", c.New.Row, "any_value", c.New.any(c.New.AnyRow, c.New.Row),
			"key", c.New.any(c.New.Key), "any_key", c.New.any(c.New.AnyKey, c.New.Key), "messages", c.inserted()), nil
	case "delete":
		return with("capture_row.sql", "row", "old", "value", c.Old.Row, "any_value", c.Old.any(c.Old.AnyRow, c.Old.Row),
			"key", c.Old.any(c.Old.Key), "any_key", c.Old.any(c.Old.AnyKey, c.Old.Key), "messages", c.deleted()), nil
	case "update":
	default:
		return "", fmt.Errorf("schema: a trigger cannot fire on %q: insert, update or delete", c.Event)
	}
	return with("capture_update.sql",
		"old", c.Old.Row, "new", c.New.Row, "any_old", c.Old.any(c.Old.AnyRow, c.Old.Row), "any_new", c.New.any(c.New.AnyRow, c.New.Row),
		"old_key", c.Old.any(c.Old.Key), "new_key", c.New.any(c.New.Key),
		"any_old_key", c.Old.any(c.Old.AnyKey, c.Old.Key), "any_new_key", c.New.any(c.New.AnyKey, c.New.Key),
		"split", strings.ToUpper(strconv.FormatBool(c.Split && c.New.Key != "")),
		"messages", c.message("update", "new_key", "CONCAT("+c.payload("update", `,"old":`)+", old_row, ',\"new\":', new_row, '}')"),
		"moved", c.deleted()+",\n    "+c.inserted()), nil
}

// any returns the first expression that is not empty, or NULL.
func (CaptureRow) any(expressions ...string) string { return cmp.Or(append(expressions, "NULL")...) }

func (c CaptureTrigger) inserted() string {
	return c.message("insert", "new_key", "CONCAT("+c.payload("insert", `,"old":null,"new":`)+", new_row, '}')")
}

func (c CaptureTrigger) deleted() string {
	message := c.message("delete", "old_key", "CONCAT("+c.payload("delete", `,"old":`)+", old_row, ',\"new\":null}')")
	if !c.Tombstones {
		return message
	}
	return message + ",\n    (CONCAT(" + ident.Literal(c.fields("delete")+`,"tombstone":"true","key":`) + ", old_key, '}'), '')"
}

// message returns a row of the topic, as SQL.
func (c CaptureTrigger) message(op, key, payload string) string {
	headers := ident.Literal(c.fields(op) + "}")
	if c.Old.Key != "" || c.New.Key != "" {
		headers = "CONCAT(" + ident.Literal(c.fields(op)+`,"key":`) + ", " + key + ", '}')"
	}
	return "(" + headers + ",\n    " + payload + ")"
}

// payload returns the literal at the beginning of a payload: the same fields as in the headers, and then more.
func (c CaptureTrigger) payload(op, more string) string { return ident.Literal(c.fields(op) + more) }

// fields returns the beginning of the JSON of headers and payload.
func (c CaptureTrigger) fields(op string) string {
	name, err := json.Marshal(c.Table)
	if err != nil {
		panic(err) // can't happen: a string has JSON
	}
	return `{"op":"` + op + `","table":` + string(name)
}
