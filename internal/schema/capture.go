package schema

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// CaptureMode is the sql_mode that the capture triggers must be made with, and then
// run, whatever the writer's is: nothing is cut short without an error, and a day that
// is none, which is in the table already, is no reason to refuse a write.
const CaptureMode = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES"

// CaptureRow is SQL that writes the row before (Old) or after a change (New).
type CaptureRow struct {
	// Row writes it as JSON, and AnyRow does when a column's type was changed.
	Row, AnyRow string
	// Key writes the row's key as a JSON string, and so does AnyKey. Empty means that messages have no key.
	Key, AnyKey string
}

// CaptureTrigger is what a capture trigger is made of.
type CaptureTrigger struct {
	Table, Topic string
	Event        string // "INSERT", "UPDATE" or "DELETE", in any case
	Old, New     CaptureRow
	// Same is SQL that is true while the columns have the types that Row and Key are for. Empty means always.
	Same string
	// Split makes an UPDATE of the key a delete and an insert, each with its own key.
	Split bool
	// Tombstones makes each delete two messages: the second has the header tombstone and an empty payload.
	Tombstones bool
	// Trigger is the trigger's name; empty means CaptureName's.
	Trigger string
	// Definition is kept in the trigger's text.
	Definition string
}

// Name is the trigger's name.
func (c CaptureTrigger) Name() string {
	if c.Trigger != "" {
		return c.Trigger
	}
	return CaptureName(c.Table, c.Event)
}

// CaptureName is the name of a table's capture trigger for an event.
func CaptureName(table, event string) string {
	return ident.Derived("mqnotify_capture_"+strings.ToLower(event)+"_", table)
}

// Statement is the commented statement that makes the trigger.
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

// any is the first of the expressions that is there, or NULL.
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

// message is a row of the topic.
func (c CaptureTrigger) message(op, key, payload string) string {
	headers := ident.Literal(c.fields(op) + "}")
	if c.Old.Key != "" || c.New.Key != "" {
		headers = "CONCAT(" + ident.Literal(c.fields(op)+`,"key":`) + ", " + key + ", '}')"
	}
	return "(" + headers + ",\n    " + payload + ")"
}

// payload is the literal that a payload begins with: as the headers do, and then more.
func (c CaptureTrigger) payload(op, more string) string { return ident.Literal(c.fields(op) + more) }

// fields begins the JSON of headers and payload.
func (c CaptureTrigger) fields(op string) string {
	name, err := json.Marshal(c.Table)
	if err != nil {
		panic(err) // a string is always written
	}
	return `{"op":"` + op + `","table":` + string(name)
}
