package main

import (
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// account is one that is tried out: how it connects, how root does, and a pool of
// root's.
type account struct {
	config, root *mysql.Config
	db           *sqlx.DB
}

func (a account) can(t *testing.T, args ...string) bool {
	r := mqnotify(t, a.config, "", args...)
	if r.code != exitDone {
		t.Log(r.err)
	}
	return r.code == exitDone
}

// makes tells whether an init into an empty database works, what it makes included.
func (a account) makes(t *testing.T, args ...string) bool {
	execute(t, a.db, "DROP TABLE IF EXISTS orders, mqnotify_flag, mqnotify_offset, mqnotify_dead_letter, mqnotify_schema")
	defer succeed(t, a.root, "init", "orders")
	if !a.can(t, args...) {
		return false
	}
	_, err := a.db.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
	return err == nil
}

// What grants prints is enough for each role, and with any privilege less the
// command fails.
func TestGrantsAreTheLeast(t *testing.T) {
	for _, test := range []struct {
		name  string
		needs []string // the sections of what grants prints, by their beginnings
		works func(t *testing.T, a account) bool
	}{
		{"producer", []string{"producer:"}, func(t *testing.T, a account) bool {
			return a.can(t, "produce", "orders", "x") && a.can(t, "produce", "orders", "x", "y", "--mode", "handshake")
		}},
		{"producer with flag", []string{"producer:", "besides, for produce --flag"}, func(t *testing.T, a account) bool {
			r := mqnotify(t, a.config, "", "produce", "orders", "x", "--flag")
			return r.code == exitDone && !strings.Contains(r.err, "the hint failed")
		}},
		{"tailer", []string{"tailer and"}, func(t *testing.T, a account) bool {
			execute(t, a.db, "DELETE FROM orders WHERE id = 2") // a gap, which is probed
			return a.can(t, "tail", "orders") &&
				a.can(t, "consume", "orders", "--from", "1", "--grace", "1ms", "--strict", "--limit", "2")
		}},
		{"consumer", []string{"tailer and", "besides, for consume --group"}, func(t *testing.T, a account) bool {
			execute(t, a.db, "DELETE FROM mqnotify_offset")
			group := []string{"consume", "orders", "--group", "g", "--from", "1", "--stop-at-end"}
			bad := []string{"--reset", "--attempts", "1", "--", "false"} // which makes dead letters
			return a.can(t, group...) && a.can(t, append(group, bad...)...)
		}},
		{"consumer with flag", []string{"tailer and", "besides, for consume --flag"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "produce", "orders", "x", "--flag")
			all := len(column(t, a.db, "SELECT id FROM orders"))
			r := background(t, a.config, "consume", "orders", "--flag", "row", "--from", "1", "--limit", strconv.Itoa(all+1))
			// It takes the flag's row away when it has read all, and then waits.
			require.Eventually(t, func() bool {
				select {
				case <-r.ended:
					return true
				default:
					return len(column(t, a.db, "SELECT counter FROM mqnotify_flag")) == 0
				}
			}, patience, 10*time.Millisecond)
			succeed(t, a.root, "produce", "orders", "one more", "--flag")
			return r.wait(t).code == exitDone
		}},
		{"producer that keeps", []string{"producer:", "besides, so that a producer"}, func(t *testing.T, a account) bool {
			in, typed := io.Pipe()
			p := start(t, environment(t, a.config), in, "produce", "orders", "--print-ids", "--log-level", "debug")
			keeps := p.keepsSoon(t)
			_, err := io.WriteString(typed, "x\n")
			require.NoError(t, err)
			require.NoError(t, typed.Close())
			return p.wait(t).code == exitDone && keeps
		}},
		{"listener", []string{"listener:"}, func(t *testing.T, a account) bool {
			l := background(t, a.config, "listen", "orders", "--limit", "1")
			if !within(t, 3*time.Second, func() bool { return strings.Contains(l.err.String(), "listening") }) {
				return false
			}
			return a.can(t, "notify", "orders") && l.wait(t).code == exitDone
		}},
		{"keeper", []string{"keeper:"}, func(t *testing.T, a account) bool {
			k := background(t, a.config, "keeper", "orders")
			return k.keepsSoon(t) && k.interrupt(t).code == exitDone
		}},
		{"keeper with flag", []string{"keeper:", "besides, for topics whose flag"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "init", "--trigger", "orders", "--trigger-on", "update")
			k := background(t, a.config, "keeper", "orders", "--look", "20ms")
			if !k.keepsSoon(t) {
				return false
			}
			l := background(t, a.root, "listen", "orders")
			l.err.contains(t, "listening")
			execute(t, a.db, "UPDATE orders SET payload = CONCAT(payload, 'x') WHERE id = 1")
			return within(t, time.Second, func() bool { return l.out.String() != "" })
		}},
		{"flag", []string{"flag:"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "produce", "orders", "x", "--flag")
			return a.can(t, "flag", "orders", "--reset")
		}},
		{"status", []string{"status:"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "consume", "orders", "--group", "g", "--stop-at-end")
			return a.can(t, "status", "orders") && strings.Contains(succeed(t, a.config, "status", "orders"), "\nGROUP ")
		}},
		{"status of others", []string{"status:", "besides, to see the sessions"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "consume", "orders", "--group", "g", "--stop-at-end")
			r := mqnotify(t, a.config, "", "status", "orders", "--json")
			return strings.Contains(r.out, `"others_visible":true`) && strings.Contains(r.out, `"group":"g"`)
		}},
		{"admin", []string{"admin:"}, func(t *testing.T, a account) bool {
			return a.makes(t, "init", "orders")
		}},
		{"admin with trigger", []string{"admin:", "besides, for init --trigger"}, func(t *testing.T, a account) bool {
			return a.makes(t, "init", "orders", "--trigger", "orders")
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
				root, db := database(t, s, "orders")
				succeed(t, root, "produce", "orders", "x", "y", "z")
				grants := grantsOf(root, test.needs...)
				try := func(grants []string) bool {
					return test.works(t, account{s.User(t, root, grants...), root, db})
				}
				require.True(t, try(grants), "%q are enough", grants)
				for _, fewer := range without(grants) {
					require.False(t, try(fewer), "%q would do", fewer)
				}
			})
		})
	}
}

// within tells whether something becomes so in time.
func within(t *testing.T, d time.Duration, is func() bool) bool {
	t.Helper()
	for late := time.After(d); !is(); {
		select {
		case <-time.After(5 * time.Millisecond):
		case <-late:
			return false
		}
	}
	return true
}

// keepsSoon waits until a command keeps the gate, or has ended.
func (r *running) keepsSoon(t *testing.T) (keeps bool) {
	t.Helper()
	within(t, 3*time.Second, func() bool {
		keeps = strings.Contains(r.err.String(), `msg="keeps the gate"`)
		select {
		case <-r.ended:
			return true
		default:
			return keeps
		}
	})
	return keeps
}

// With what grants prints consumers are woken: a keeper of the least privileges sees
// what anybody inserts, and hears a producer that may do nothing but insert.
func TestGrantsWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := database(t, s, "orders")
		c := background(t, s.User(t, root, grantsOf(root, "tailer and")...), "consume", "orders", "--format", "payload")
		c.err.contains(t, "mode=gate")
		execute(t, db, "INSERT INTO orders (payload) VALUES ('foreign')")
		c.out.contains(t, "foreign\n")

		in, typed := io.Pipe()
		p := start(t, environment(t, s.User(t, root, grantsOf(root, "producer:")...)), in, "produce", "orders")
		require.Eventually(t, func() bool { return strings.Contains(succeed(t, root, "status", "orders"), "\nbells:") }, patience, 10*time.Millisecond)
		_, err := io.WriteString(typed, "rung\n")
		require.NoError(t, err)
		c.out.contains(t, "rung\n")
		require.NoError(t, typed.Close())
		require.Equal(t, exitDone, p.wait(t).code)
		require.Equal(t, exitDone, c.interrupt(t).code)
	})
}

// The privileges for exact gaps are those that the servers ask for.
func TestGrantsForExactGaps(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, _ := database(t, s, "orders")
		writers := func(grants []string) string {
			config := s.User(t, root, append(grants, grantsOf(root, "tailer and")...)...)
			r := mqnotify(t, config, "", "tail", "orders", "--log-level", "debug")
			_, after, _ := strings.Cut(r.err, "writers=")
			name, _, _ := strings.Cut(after, " ")
			return name
		}
		require.Equal(t, "unknown", writers(nil))
		require.Equal(t, "innodb-trx", writers(grantsOf(root, "or on MariaDB")))
		if s.IsMariaDB() {
			return
		}
		exact := grantsOf(root, "besides, to know exactly")
		require.Equal(t, "metadata-locks", writers(exact))
		for _, fewer := range without(exact) {
			require.Equal(t, "unknown", writers(fewer), "%q would do", fewer)
		}
	})
}

func TestGrantsPrint(t *testing.T) {
	out := succeed(t, nil, "grants", "or`ders", "invoices", "--database", "shop", "--role", "producer", "--to", "'o''app'@\"10.%\"")
	require.Equal(t, "-- Make the tables first (mqnotify init): servers refuse most grants on tables that are not there.\n"+
		"\n-- producer: mqnotify produce\n"+
		"GRANT INSERT ON `shop`.`or``ders` TO `o''app`@`10.%`;\n"+
		"GRANT INSERT ON `shop`.`invoices` TO `o''app`@`10.%`;\n"+
		"\n-- besides, for produce --flag\n"+
		"GRANT SELECT, INSERT, UPDATE ON `shop`.`mqnotify_flag` TO `o''app`@`10.%`;\n"+
		"\n-- besides, so that a producer that lives may keep the gate itself, which brings its messages there\n"+
		"-- sooner. Without it a consumer keeps it\n"+
		"GRANT SELECT ON `shop`.`or``ders` TO `o''app`@`10.%`;\n"+
		"GRANT SELECT ON `shop`.`invoices` TO `o''app`@`10.%`;\n", out)
	all := succeed(t, nil, "grants", "orders", "--dsn", "me@tcp(127.0.0.1:9)/shop", "--to", "app")
	require.Contains(t, all, " TO `app`@`%`;\n")
	for _, role := range roles {
		require.Contains(t, all, role)
	}
	require.Contains(t, fail(t, exitUsage, nil, "grants", "orders", "--database", "shop", "--role", "king"), "producer, consumer")
	require.Contains(t, fail(t, exitUsage, nil, "grants", "orders", "--database", "shop "), "--database")
	require.Contains(t, fail(t, exitUsage, nil, "grants", "", "--database", "shop"), "empty")
	require.Contains(t, fail(t, exitFailed, nil, "grants", "orders", "--dsn", "me@tcp(127.0.0.1:9)/"), "--database")
	require.Contains(t, fail(t, exitFailed, nil, "grants", "orders"), "MQNOTIFY_DSN")
}

// The whole of what grants prints runs as it is.
func TestGrantsRun(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := database(t, s, "orders")
		user := s.User(t, root)
		printed := succeed(t, root, "grants", "orders", "--to", user.User)
		for statement := range strings.SplitSeq(printed, ";\n") {
			if s.IsMariaDB() && strings.Contains(statement, "performance_schema") {
				continue // not for MariaDB, as the lines before say
			}
			if statement = strings.TrimSpace(statement); statement != "" {
				execute(t, db, statement)
			}
		}
		succeed(t, user, "produce", "orders", "x")
	})
}

// grantsOf are the statements of the sections that begin so, without their GRANT.
func grantsOf(config *mysql.Config, sections ...string) (grants []string) {
	for _, n := range needs {
		if slices.ContainsFunc(sections, func(s string) bool { return strings.HasPrefix(n.what, s) }) {
			for _, statement := range n.statements(config.DBName, []string{"orders"}) {
				grants = append(grants, strings.TrimPrefix(statement, "GRANT "))
			}
		}
	}
	return grants
}

// without is the grants with one privilege less, in every way.
func without(grants []string) (all [][]string) {
	for i, grant := range grants {
		privileges, on, _ := strings.Cut(grant, " ON ")
		each := strings.Split(privileges, ", ")
		for k := range each {
			fewer := slices.Delete(slices.Clone(grants), i, i+1)
			if left := slices.Delete(slices.Clone(each), k, k+1); len(left) > 0 {
				fewer = append(fewer, strings.Join(left, ", ")+" ON "+on)
			}
			all = append(all, fewer)
		}
	}
	return all
}
