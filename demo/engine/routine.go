package engine

import (
	"fmt"
	"regexp"

	"github.com/mqnotify/mqnotify/internal/waiting"
)

var callWake = regexp.MustCompile("^CALL " + waiting.WakeRoutine + `\('(\w+)'\)$`)

// routine replaces a CALL of a routine that listeners need with another statement, because the engine's routines can't KILL. mqnotify_wake
// ends the wait of the gate's leader, as on a server. mqnotify_wake_tables lists no trigger.
func (h *handler) routine(query string) string {
	if query == "CALL "+waiting.TablesRoutine+"()" {
		return "SELECT TABLE_NAME, '' FROM information_schema.TABLES WHERE FALSE"
	}
	call := callWake.FindStringSubmatch(query)
	if call == nil {
		return query
	}
	for _, name := range waiting.WokenLocks(database, call[1]) {
		if leader := h.locks.owner(name); leader != 0 {
			h.woken.Store(leader, true)
			return fmt.Sprintf("KILL QUERY %d", leader)
		}
	}
	return "SELECT 0"
}
