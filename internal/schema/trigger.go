package schema

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

// TriggerForm is one of the two published forms of the flag.
type TriggerForm string

const (
	// TriggerCounter counts changes. It allows any number of readers, but writers of the
	// table commit one at a time.
	TriggerCounter TriggerForm = "counter"
	// TriggerRow inserts a row that the reader deletes. It allows one reader.
	TriggerRow TriggerForm = "row"
)

// Trigger returns the commented statement that creates a trigger which sets the flag at
// every event ("INSERT", "UPDATE" or "DELETE") of a table, for writers that can't be changed.
func Trigger(table string, form TriggerForm, event string) (string, error) {
	if err := ident.Check(table); err != nil {
		return "", err
	}
	event = strings.ToUpper(event)
	switch event {
	case "INSERT", "UPDATE", "DELETE":
	default:
		return "", fmt.Errorf("schema: a trigger cannot fire on %q: insert, update or delete", event)
	}
	var file string
	switch form {
	case TriggerCounter:
		file = "trigger_counter.sql"
	case TriggerRow:
		file = "trigger_row.sql"
	default:
		return "", fmt.Errorf("schema: no trigger form %q: %s or %s", form, TriggerCounter, TriggerRow)
	}
	return fill(read(file),
		"topic", ident.Quote(table),
		"trigger", ident.Quote(TriggerName(table, event)),
		"event", event,
		"name", ident.Literal(table)), nil
}

// SameTrigger reports whether a trigger with this body, as the server shows it, was made by the statement, which is Trigger's.
func SameTrigger(body, statement string) bool {
	_, want, _ := strings.Cut(statement, "FOR EACH ROW")
	words := func(s string) []string { return strings.Fields(strings.TrimRight(s, "; \n")) }
	return slices.Equal(words(body), words(want))
}

// TriggerName returns the name of a table's flag trigger.
func TriggerName(table, event string) string {
	return ident.Derived("mqnotify_"+strings.ToLower(event)+"_", table)
}
