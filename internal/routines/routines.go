// Package routines holds the procedures by which programs in any language wait, publish, listen and notify in plain SQL.
// `mqnotify init` makes them; docs/guide/languages.md describes them for users.
//
// They run with the rights of the account that calls them, so that they give nobody access to a table. mqnotify_count_triggers
// alone runs with the rights of the account that made it: it counts triggers and shows nothing else.
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

// The procedures that Wait, Await and Listen call: who may execute those needs EXECUTE on these, too.
const (
	WaitFor       = "mqnotify_wait_for"
	CountTriggers = "mqnotify_count_triggers"
)

//go:embed *.sql
var files embed.FS

// Public are the procedures that programs of other languages call, and those that these call. Their parameters have wide types, and they check
// the lengths: the server makes arguments fit under the caller's sql_mode, which may cut them without an error.
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

// All are the procedures that `mqnotify init` makes in a database.
func All(database string) []waiting.Routine {
	all := append(waiting.Routines(database), waiting.Routine{Name: schema.OpenWritersRoutine, Statement: schema.OpenWriters()})
	return append(all, Public(database)...)
}
