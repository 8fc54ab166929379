// Package routines holds the procedures by which programs in any language wait, publish, listen and notify in plain SQL.
// `mqnotify init` makes them; docs/guide/languages.md describes them for users.
//
// They run with the privileges of the account that calls them, so that they give no account access to a table. Only
// mqnotify_count_triggers runs with the privileges of the account that made it: it counts triggers and shows nothing else.
package routines

import (
	"embed"
	"strings"

	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// The procedures that programs call.
const (
	Wait    = "mqnotify_wait"
	Await   = "mqnotify_await"
	Publish = "mqnotify_publish"
	Listen  = "mqnotify_listen"
	Notify  = "mqnotify_notify"
)

// The procedures that Wait, Await and Listen call. A caller of these three needs EXECUTE on them as well.
const (
	WaitFor       = "mqnotify_wait_for"
	CountTriggers = "mqnotify_count_triggers"
)

//go:embed *.sql
var files embed.FS

// Public returns the procedures that programs of other languages call, and those that these call. Their parameters have wide
// types, and the procedures check the lengths, because the server converts arguments under the caller's sql_mode, which may cut
// them without an error.
func Public(database string) []waiting.Routine {
	var all []waiting.Routine
	for _, name := range []string{CountTriggers, WaitFor, Wait, Await, Publish, Listen, Notify} {
		text, err := files.ReadFile(strings.TrimPrefix(name, "mqnotify_") + ".sql")
		if err != nil {
			panic(err) // a file named in this package is not embedded
		}
		all = append(all, waiting.Routine{Name: name, Statement: waiting.Fill(database, string(text))})
	}
	return all
}

// All returns the procedures that `mqnotify init` makes in a database.
func All(database string) []waiting.Routine {
	all := append(waiting.Routines(database), waiting.Routine{Name: schema.OpenWritersRoutine, Statement: schema.OpenWriters()})
	return append(all, Public(database)...)
}
