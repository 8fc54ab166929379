package schema

import (
	"encoding/json"
	"fmt"
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
}

// Name is the trigger's name.
func (c CaptureTrigger) Name() string { return CaptureName(c.Table, c.Event) }

// CaptureName is the name of a table's capture trigger for an event.
func CaptureName(table, event string) string {
	return ident.Derived("mqnotify_capture_"+strings.ToLower(event)+"_", table)
}

// Statement is the commented statement that makes the trigger.
func (c CaptureTrigger) Statement() (string, error) {
	event := strings.ToLower(c.Event)
	file, row, before, after := "capture_row.sql", c.New, `,"old":null,"new":`, "}"
	switch event {
	case "insert":
	case "update":
		file, before = "capture_update.sql", `,"old":`
	case "delete":
		row, before, after = c.Old, `,"old":`, `,"new":null}`
	default:
		return "", fmt.Errorf("schema: a trigger cannot fire on %q: insert, update or delete", c.Event)
	}
	headers, err := json.Marshal(map[string]string{"op": event, "table": c.Table})
	if err != nil {
		return "", fmt.Errorf("schema: encode headers: %w", err)
	}
	// The payload begins as the headers do.
	before = strings.TrimSuffix(string(headers), "}") + before
	return fill(read(file),
		"trigger", ident.Quote(c.Name()),
		"event", strings.ToUpper(event),
		"table", ident.Quote(c.Table),
		"topic", ident.Quote(c.Topic),
		"headers", ident.Literal(string(headers)),
		"before", ident.Literal(before),
		"after", ident.Literal(after),
		"row", row, "old", c.Old, "new", c.New), nil
}
