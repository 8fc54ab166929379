package main

import (
	"bytes"
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// A dump of an account's database, with and without routines and triggers, is restored into a server that does not have the
// account. doctor finds what is missing or broken, and init repairs it. Then programs in any language wake the consumer, and
// the group continues where it was.
func TestRestore(t *testing.T) {
	mysqltest.NotShort(t, "doctor.TestLostDefiner and TestInitQueue")
	const unknown = "does not exist: every write to the table fails with error 1449"
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root := s.Database(t)
		owner := s.User(t, root, "ALL ON `"+root.DBName+"`.*")
		succeed(t, owner, "init", "orders")
		empty := dump(t, s, root, root.DBName, "orders")
		succeed(t, owner, "produce", "orders", "a", "b", "c")
		succeed(t, owner, "consume", "orders", "--group", "mailer", "--from", "beginning", "--stop-at-end")
		target := s.Start(t)
		config := target.Database(t)
		db := open(t, config)
		config.DBName = root.DBName // the names of locks contain it
		for _, c := range []struct {
			flags, finds []string
		}{
			{nil, []string{
				"procedures: not there: mqnotify_wake,", "wake trigger mqnotify_wake_insert_orders: its account " + owner.User + "@% " + unknown,
				"wake trigger mqnotify_wake_insert_mqnotify_task: its account " + owner.User + "@% " + unknown,
			}},
			{[]string{"--skip-triggers"}, []string{
				"procedures: not there: mqnotify_wake,", "triggers: no wake trigger on mqnotify_notification, mqnotify_task, mqnotify_ring", "orders: wake: no wake trigger",
			}},
			{[]string{"--routines", "--triggers"}, []string{
				"procedures: the account that made them does not exist, and calls fail with error 1449: mqnotify_wake,",
				"wake trigger mqnotify_wake_insert_orders: its account " + owner.User + "@% " + unknown,
			}},
		} {
			t.Run(strings.Join(c.flags, " "), func(t *testing.T) {
				name := "`" + root.DBName + "`"
				mysqltest.Exec(t, db, "CREATE DATABASE "+name)
				defer mysqltest.Exec(t, db, "DROP DATABASE "+name)
				restore(t, target, config, dump(t, s, root, append(c.flags, root.DBName)...))
				found := mqnotify(t, config, "", "doctor", "orders").out
				for _, problem := range c.finds {
					assert.Contains(t, found, problem)
				}
				assert.NotContains(t, found, "of another version")

				succeed(t, config, "init", "orders")
				require.Contains(t, succeed(t, config, "doctor", "orders"), " 0 warnings, 0 problems")
				consumer := background(t, config, "consume", "orders", "--group", "mailer")
				consumer.err.contains(t, "mode=trigger")
				restored := open(t, config)
				mysqltest.ExecAll(t, restored, "INSERT INTO orders (payload) VALUES ('plain')", "CALL mqnotify_publish('orders', NULL, 'called')",
					"CALL mqnotify_notify('reload', '')")
				consumer.out.contains(t, `"payload":"called"`)
				require.Equal(t, exitDone, consumer.interrupt(t).code)
				require.Equal(t, 2, strings.Count(consumer.out.String(), "\n"), "messages that the group has handled do not come again")

				// This restores only the table, as it was before the group read it.
				restore(t, target, config, empty)
				require.Contains(t, mqnotify(t, config, "", "doctor", "orders").out, `offsets: group "mailer" has done all ids up to 5, and the table's next id is 1`)
				succeed(t, config, "init", "orders")
				succeed(t, config, "produce", "orders", "new")
				require.Contains(t, succeed(t, config, "consume", "orders", "--group", "mailer", "--reset", "--from", "beginning", "--stop-at-end"), `"payload":"new"`)
				require.Contains(t, succeed(t, config, "doctor", "orders"), " 0 warnings, 0 problems")
			})
		}
	})
}

// dump returns the output of the server's dump program.
func dump(t *testing.T, s *mysqltest.Server, config *mysql.Config, args ...string) string {
	t.Helper()
	return client(t, s.DumpProgram(t), config, "", append([]string{"--single-transaction"}, args...)...)
}

// restore loads a dump.
func restore(t *testing.T, s *mysqltest.Server, config *mysql.Config, dump string) {
	t.Helper()
	client(t, s.ClientProgram(t), config, dump, config.DBName)
}

// client runs a client program of the server.
func client(t *testing.T, program string, config *mysql.Config, in string, args ...string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(config.Addr)
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, append([]string{"--host=" + host, "--port=" + port, "--user=" + config.User}, args...)...)
	cmd.Env = []string{"MYSQL_PWD=" + config.Passwd}
	cmd.Stdin = strings.NewReader(in)
	var out, said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &said
	require.NoError(t, cmd.Run(), said.String())
	return out.String()
}
