package waiting

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"

	"github.com/mqnotify/mqnotify/internal/ident"
)

var (
	//go:embed wake_trigger.sql
	triggerText string
	//go:embed wake_routine.sql
	routineText string
	//go:embed wake_tables.sql
	tablesText string
)

// The routines that are created with wake triggers.
const (
	// WakeRoutine wakes the listeners of a topic.
	WakeRoutine = "mqnotify_wake"
	// TablesRoutine lists the tables whose trigger wakes listeners.
	TablesRoutine = "mqnotify_wake_tables"
)

// Routine is a procedure that the listeners need.
type Routine struct {
	Name string
	// Statement is the commented statement that creates it.
	Statement string
}

// Routines returns the routines of a database.
func Routines(database string) []Routine {
	return []Routine{
		{Name: WakeRoutine, Statement: Fill(database, routineText)},
		{Name: TablesRoutine, Statement: Fill(database, tablesText)},
	}
}

// Fill replaces the placeholders in the text of a routine by the values of a database's gates.
func Fill(database, text string) string {
	return strings.NewReplacer(
		"{prefix}", Prefix(database),
		"{gates}", strconv.Itoa(Gates),
		"{slots}", strconv.Itoa(SlotsPerSecond),
		"{phases}", strconv.Itoa(phases),
		"{every}", every,
		"{longest}", strconv.Itoa(int((leaderWait + answer).Seconds())),
	).Replace(text)
}

// Trigger returns the commented statement that creates a table's wake trigger for an event ("INSERT", "UPDATE" or
// "DELETE", in any case). The trigger wakes the table's listeners, whatever program changes the table.
func Trigger(database, table, event string) (string, error) {
	if err := ident.Check(table); err != nil {
		return "", err
	}
	event = strings.ToUpper(event)
	switch event {
	case "INSERT", "UPDATE", "DELETE":
	default:
		return "", fmt.Errorf("waiting: a trigger cannot fire on %q: insert, update or delete", event)
	}
	return strings.NewReplacer(
		"{trigger}", ident.Quote(TriggerName(table, event)),
		"{event}", event,
		"{table}", ident.Quote(table),
		"{number}", strconv.Itoa(Gate(table)),
		"{gate}", string(namesOf(database, Gate(table))),
		"{slots}", strconv.Itoa(SlotsPerSecond),
	).Replace(triggerText), nil
}

// TriggerName returns the name of a table's wake trigger for an event.
func TriggerName(table, event string) string {
	return ident.Derived("mqnotify_wake_"+strings.ToLower(event)+"_", table)
}
