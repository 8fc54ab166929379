package main

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// Every command that uses the tables refuses those of an older or newer mqnotify, and says what to do. init upgrades older
// tables, and doctor reports both.
func TestOtherVersions(t *testing.T) {
	commands := [][]string{
		{"produce", "orders", "x"},
		{"consume", "orders"},
		{"consume", "orders", "--group", "g"},
		{"consume", "orders", "--group", "g", "--members-share"},
		{"tail", "orders", "-f"},
		{"bridge", "orders", "--to", "stdout:", "--group", "g"},
		{"import", "--from", "nats://127.0.0.1:1/?stream=s", "--into", "orders"},
		{"listen", "reload"},
		{"notify", "reload"},
		{"flag", "orders"},
		{"status", "orders"},
		{"dead", "orders", "list"},
		{"lock", "deploy", "--", "true"},
		{"once", "nightly", "--", "true"},
		{"enqueue", "mail", "x"},
		{"work", "mail", "--", "true"},
		{"tasks", "mail"},
		{"schedule", "list"},
		{"ring", "read", "temperatures"},
		{"wake", "install", "orders"},
		{"capture", "install", "orders"},
		{"serve", "orders", "--listen", "127.0.0.1:0"},
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := database(t, s, "orders")
		succeed(t, root, "init", "--queue", "mail")
		refused := func(remedy string) {
			for _, command := range commands {
				t.Run(command[0], func(t *testing.T) {
					r := mqnotify(t, root, "", command...)
					assert.Equal(t, exitFailed, r.code, command)
					assert.Contains(t, r.err, "the tables of mqnotify have another version", command)
					assert.Contains(t, r.err, remedy, command)
				})
			}
		}
		mysqltest.Exec(t, db, "INSERT INTO mqnotify_schema (version) VALUES (99)")
		refused("update this program")
		require.Contains(t, mqnotify(t, root, "", "doctor").out, "have version 99, and this mqnotify knows only")

		mysqltest.Exec(t, db, "DELETE FROM mqnotify_schema WHERE version = 99")
		mysqltest.Exec(t, db, "UPDATE mqnotify_schema SET version = 0")
		refused("run `mqnotify init`")
		require.Contains(t, mqnotify(t, root, "", "doctor").out, "have version 0, and this mqnotify needs")
		succeed(t, root, "init")
		succeed(t, root, "produce", "orders", "x")
		require.Contains(t, succeed(t, root, "consume", "orders", "--group", "g", "--from", "beginning", "--stop-at-end"), `"payload":"x"`)
	})
}

// mqnotify refuses tables of another version only if the account may read the version, for which grants prints the privilege.
func TestGrantsVersion(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := database(t, s, "orders")
		succeed(t, root, "init")
		mysqltest.Exec(t, db, "INSERT INTO mqnotify_schema (version) VALUES (99)")
		for _, c := range []struct {
			sections []string
			code     int
		}{
			{[]string{"producer:"}, exitDone},
			{[]string{"producer:", "all, besides: to refuse"}, exitFailed},
		} {
			r := mqnotify(t, s.User(t, root, grantsOf(root, c.sections...)...), "", "produce", "orders", "x")
			require.Equal(t, c.code, r.code, "%v: %s", c.sections, r.err)
		}
	})
}
