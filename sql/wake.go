package schema

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// WakeRoutine is the procedure that wakes the listeners of a topic.
const WakeRoutine = "mqnotify_wake"

// WakeTrigger is the commented statement that makes a table's trigger wake its listeners at each event ("INSERT",
// "UPDATE" or "DELETE"), by whatever program.
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

// WakeProcedure is the commented statement that makes the routine mqnotify_wake of a database.
func WakeProcedure(database string) string {
	return fill(read("wake_routine.sql"), "prefix", waiting.Prefix(database), "gates", strconv.Itoa(waiting.Gates))
}
