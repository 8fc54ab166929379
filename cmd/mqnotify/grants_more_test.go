package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
)

// An account with all grants of a role can use no other topics, no queues (unless the role works on queues) and no other
// databases. It cannot choose the id of a row that it inserts, because the largest id would end the table.
func TestGrantsAllowNoMore(t *testing.T) {
	const insertID, insertTaskID = "INSERT INTO orders (id, payload) VALUES (18446744073709551614, 'x')",
		"INSERT INTO mqnotify_task (id, queue, payload) VALUES (18446744073709551614, 'mail', 'x')"
	denied := map[string][]string{ // in addition to those for all roles
		roleProducer: {insertID, "SELECT * FROM orders", "UPDATE orders SET payload = 'x'", "DELETE FROM orders", "SELECT * FROM mqnotify_task"},
		roleConsumer: {insertID, "INSERT INTO orders (payload) VALUES ('x')", "UPDATE orders SET payload = 'x'", "DELETE FROM orders"},
		roleTailer:   {insertID, "INSERT INTO orders (payload) VALUES ('x')", "SELECT * FROM mqnotify_offset"},
		roleListener: {"INSERT INTO mqnotify_notification (id, name, payload) VALUES (18446744073709551614, 'x', 'x')", "SELECT * FROM orders"},
		roleStatus:   {insertID, "UPDATE mqnotify_offset SET settled = 0", "DELETE FROM mqnotify_dead_letter"},
		roleDead:     {insertID, "UPDATE mqnotify_offset SET settled = 0"},
		roleImporter: {insertID, "SELECT * FROM orders"},
		roleServe:    {insertID, "UPDATE mqnotify_offset SET settled = 0"},
		roleGuard:    {"SELECT * FROM orders", "SELECT * FROM mqnotify_task"},
		roleEnqueuer: {insertTaskID, "SELECT * FROM orders", "UPDATE mqnotify_task SET payload = 'x'", "DELETE FROM mqnotify_task"},
		roleWorker:   {insertTaskID, "SELECT * FROM orders"},
		roleTasks:    {insertTaskID, "INSERT INTO mqnotify_task (queue, payload) VALUES ('mail', 'x')", "SELECT * FROM orders"},
		roleCapture:  {"SELECT * FROM orders_changes", "INSERT INTO orders (payload) VALUES ('x')", "UPDATE orders SET payload = 'x'"},
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, _ := database(t, s, "orders", "orders_changes", "secrets")
		succeed(t, root, "init", "--queue", "mail")
		other, _ := database(t, s, "orders")
		succeed(t, other, "init", "--queue", "mail")
		for _, role := range roles {
			var sections []string
			for _, n := range needs {
				if slices.Contains(n.roles, role) && !strings.Contains(strings.Join(n.statements("d", nil), ""), "PROCESS") {
					sections = append(sections, n.what)
				}
			}
			grants := slices.DeleteFunc(grantsOf(root, sections...), func(grant string) bool { return strings.Contains(grant, "performance_schema") })
			db := open(t, s.User(t, root, grants...))
			all := []string{
				"SELECT * FROM " + other.DBName + ".orders", "SELECT * FROM " + other.DBName + ".mqnotify_offset", "SELECT * FROM " + other.DBName + ".mqnotify_dead_letter",
				"SELECT * FROM " + other.DBName + ".mqnotify_task", "INSERT INTO " + other.DBName + ".orders (payload) VALUES ('x')",
				"CALL " + other.DBName + ".mqnotify_wake('orders')", "CALL " + other.DBName + ".mqnotify_open_writers()",
			}
			if role != roleAdmin {
				all = append(all, "SELECT * FROM secrets", "INSERT INTO secrets (payload) VALUES ('x')", "DROP TABLE orders", "CREATE TABLE more (id INT)")
			}
			for _, statement := range append(all, denied[role]...) {
				_, err := db.ExecContext(t.Context(), statement)
				assert.True(t, server.NoPrivilege(err) || server.Is(err, server.ErrRoutineDenied), "%s: %s: %v", role, statement, err)
			}
		}
	})
}
