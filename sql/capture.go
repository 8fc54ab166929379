package schema

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// CaptureMode is the sql_mode under which the capture triggers are to be made, and then
// run, whatever the writer's is: nothing is cut short without an error, and a day that
// is none, which is in the table already, is no reason to refuse a write.
const CaptureMode = "STRICT_ALL_TABLES,ALLOW_INVALID_DATES"

// CaptureTrigger is what a capture trigger is made of.
type CaptureTrigger struct {
	Table, Topic string
	Event        string // "INSERT", "UPDATE" or "DELETE", in any case
	// Old and New are SQL that writes the row before and after as JSON.
	Old, New string
	// OldKey and NewKey are SQL that writes the row's key before and after as a JSON string. Empty means that messages have no key.
	OldKey, NewKey string
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
	common := []string{
		"trigger", ident.Quote(c.Name()), "event", strings.ToUpper(event), "table", ident.Quote(c.Table),
		"topic", ident.Quote(c.Topic), "definition", ident.Literal(c.Definition),
	}
	with := func(file string, pairs ...string) string { return fill(read(file), append(common, pairs...)...) }
	switch event {
	case "insert":
		return with("capture_row.sql", "messages", c.inserted(c.NewKey, c.New)), nil
	case "delete":
		return with("capture_row.sql", "messages", c.deleted(c.OldKey, c.Old)), nil
	case "update":
	default:
		return "", fmt.Errorf("schema: a trigger cannot fire on %q: insert, update or delete", c.Event)
	}
	oldKey, newKey, split := "NULL", "NULL", "FALSE"
	key := func(string) string { return "" }
	if c.NewKey != "" {
		oldKey, newKey, split = c.OldKey, c.NewKey, strings.ToUpper(strconv.FormatBool(c.Split))
		key = func(variable string) string { return variable }
	}
	return with("capture_update.sql",
		"old", c.Old, "new", c.New, "old_key", oldKey, "new_key", newKey, "split", split,
		"messages", c.message("update", key("new_key"), "CONCAT("+c.payload("update", `,"old":`)+", old_row, ',\"new\":', new_row, '}')"),
		"moved", c.deleted(key("old_key"), "old_row")+",\n    "+c.inserted(key("new_key"), "new_row")), nil
}

func (c CaptureTrigger) inserted(key, row string) string {
	return c.message("insert", key, "CONCAT("+c.payload("insert", `,"old":null,"new":`)+",\n      "+row+",\n      '}')")
}

func (c CaptureTrigger) deleted(key, row string) string {
	message := c.message("delete", key, "CONCAT("+c.payload("delete", `,"old":`)+",\n      "+row+",\n      ',\"new\":null}')")
	if !c.Tombstones {
		return message
	}
	return message + ",\n    (CONCAT(" + ident.Literal(c.fields("delete")+`,"tombstone":"true","key":`) + ", " + key + ", '}'), '')"
}

// message is a row of the topic.
func (c CaptureTrigger) message(op, key, payload string) string {
	headers := ident.Literal(c.fields(op) + "}")
	if key != "" {
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
