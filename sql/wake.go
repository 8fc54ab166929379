package schema

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// The routines that are made with wake triggers.
const (
	// WakeRoutine wakes the listeners of a topic.
	WakeRoutine = "mqnotify_wake"
	// WakeTablesRoutine lists the tables whose trigger wakes listeners.
	WakeTablesRoutine = "mqnotify_wake_tables"
)

// Routine is a procedure of mqnotify's.
type Routine struct {
	Name string
	// Statement is the commented statement that makes it.
	Statement string
}

// WakeRoutines are the routines of a database that wake triggers go with.
func WakeRoutines(database string) []Routine {
	prefix := waiting.Prefix(database)
	return []Routine{
		{WakeRoutine, fill(read("wake_routine.sql"), "prefix", prefix, "gates", strconv.Itoa(waiting.Gates))},
		{WakeTablesRoutine, fill(read("wake_tables.sql"), "prefix", prefix)},
	}
}

// WakeTrigger returns the commented statement that makes a table's wake trigger for an event ("INSERT", "UPDATE" or
// "DELETE", in any case). The trigger wakes the table's listeners, whatever program makes the change.
func WakeTrigger(database, table, event string) (string, error) {
	if err := ident.Check(table); err != nil {
		return "", err
	}
	event = strings.ToUpper(event)
	switch event {
	case "INSERT", "UPDATE", "DELETE":
	default:
		return "", fmt.Errorf("schema: a trigger cannot fire on %q: insert, update or delete", event)
	}
	return fill(read("wake_trigger.sql"),
		"trigger", ident.Quote(WakeTriggerName(table, event)),
		"event", event,
		"table", ident.Quote(table),
		"gate", waiting.Prefix(database)+":"+strconv.Itoa(waiting.Gate(table))), nil
}

// WakeTriggerName is the name of a table's wake trigger for an event.
func WakeTriggerName(table, event string) string {
	return nameFor("mqnotify_wake_"+strings.ToLower(event)+"_", table)
}
