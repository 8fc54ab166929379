package main

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The printed grants are enough for each role. Without any one of their privileges the command fails.
func TestGrantsAreTheLeast(t *testing.T) {
	leastOfAll(t, []role{
		{"producer", []string{"producer:"}, func(t *testing.T, a account) bool {
			return a.can(t, "produce", "orders", "x") && a.can(t, "produce", "orders", "x", "y", "--mode", "handshake")
		}},
		{"producer with flag", []string{"producer:", "besides, for produce --set-flag"}, func(t *testing.T, a account) bool {
			r := mqnotify(t, a.config, "", "produce", "orders", "x", "--set-flag")
			return r.code == exitDone && !strings.Contains(r.err, "the flag was not set")
		}},
		{"tailer", []string{"tailer and"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM orders WHERE id = 2") // makes a gap, which the reader must settle
			return a.can(t, "tail", "orders") &&
				a.can(t, "consume", "orders", "--from", "1", "--grace", "1ms", "--strict", "--limit", "2")
		}},
		{"consumer", []string{"tailer and", "besides, for consume --group"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_offset")
			group := []string{"consume", "orders", "--group", "g", "--from", "1", "--stop-at-end"}
			bad := []string{"--reset", "--attempts", "1", "--", "false"} // makes dead letters
			return a.can(t, group...) && a.can(t, append(group, bad...)...)
		}},
		{"consumer that shares", []string{"tailer and", "besides, for consume --group", "besides, for consume --members-share"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_offset")
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_partition")
			share := []string{"consume", "orders", "--members-share", "--partitions", "2", "--from", "1", "--stop-at-end"}
			return a.can(t, append(share, "--group", "a")...) &&
				a.can(t, append(share, "--group", "b", "--attempts", "1", "--", "false")...) // makes dead letters
		}},
		{"consumer with flag", []string{"tailer and", "besides, for consume --flag"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "produce", "orders", "x", "--set-flag")
			all := len(mysqltest.Values[string](t, a.db, "SELECT id FROM orders"))
			r := background(t, a.config, "consume", "orders", "--flag", "row", "--from", "1", "--limit", strconv.Itoa(all+1))
			// The consumer deletes the flag's row when it has read all messages, and then waits.
			require.Eventually(t, func() bool {
				select {
				case <-r.ended:
					return true
				default:
					return len(mysqltest.Values[string](t, a.db, "SELECT counter FROM mqnotify_flag")) == 0
				}
			}, patience, 25*time.Millisecond)
			succeed(t, a.root, "produce", "orders", "one more", "--set-flag")
			return r.wait(t).code == exitDone
		}},
		{"listener", []string{"listener: mqnotify"}, func(t *testing.T, a account) bool {
			l := background(t, a.config, "listen", "orders", "--limit", "1")
			if !within(t, a.most, func() bool { return strings.Contains(l.err.String(), "listening") }) {
				return false
			}
			succeed(t, a.root, "notify", "orders")
			return l.wait(t).code == exitDone
		}},
		{"notifier", []string{"listener, for mqnotify notify"}, func(t *testing.T, a account) bool {
			return a.can(t, "notify", "orders", "x")
		}},
		{"flag", []string{"flag:"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "produce", "orders", "x", "--set-flag")
			return a.can(t, "flag", "orders", "--reset")
		}},
		{"status", []string{"status:"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "consume", "orders", "--group", "g", "--stop-at-end")
			return a.can(t, "status", "orders") && strings.Contains(succeed(t, a.config, "status", "orders"), "\nGROUP ")
		}},
		{"status of a shared group", []string{"status:", "besides, for groups whose members"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "consume", "orders", "--group", "shared", "--members-share", "--stop-at-end")
			return a.can(t, "status", "orders") && strings.Contains(succeed(t, a.config, "status", "orders"), "\nMEMBER OF ")
		}},
		{"status of others", []string{"status:", "besides, to count the sessions"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "consume", "orders", "--group", "g", "--stop-at-end")
			for range 2 { // one leads and the other follows
				waits := background(t, a.root, "tail", "-f", "orders")
				waits.err.contains(t, "msg=waiting")
			}
			counts := func(config *mysql.Config) bool {
				out := mqnotify(t, config, "", "status", "orders", "--json").out
				return strings.Contains(out, `"followers":`) && !strings.Contains(out, `"followers":0,`) && strings.Contains(out, `"group":"g"`)
			}
			require.True(t, within(t, patience, func() bool { return counts(a.root) }))
			return counts(a.config)
		}},
		{"dead", []string{"dead:"}, func(t *testing.T, a account) bool {
			return a.can(t, "dead", "orders")
		}},
		{"dead of messages", []string{"dead, for retry and delete of messages"}, func(t *testing.T, a account) bool {
			a.deadLetters(t, a.root)
			return a.can(t, "dead", "orders", "retry", "--all") && a.can(t, "dead", "orders", "delete", "--all")
		}},
		{"dead of rows", []string{"dead, for retry and delete of rows"}, func(t *testing.T, a account) bool {
			a.ownTable(t)
			a.deadLetters(t, a.root)
			return a.can(t, "dead", "orders", "retry", "--all") && a.can(t, "dead", "orders", "delete", "--all")
		}},
		{"consumer that notices TRUNCATE", []string{
			"tailer and", "besides, for consume --group", "or on MariaDB, and on MySQL instead", "besides, with PROCESS",
		}, func(t *testing.T, a account) bool {
			within(t, patience, func() bool {
				return len(mysqltest.Values[string](t, a.db, "SELECT 1 FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'orders'"+
					" AND CREATE_TIME < NOW() - INTERVAL 3 SECOND")) == 1
			})
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_offset")
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_origin")
			for range 2 { // makes dead letters, and then replaces them
				if !a.deadLetters(t, a.config) {
					return false
				}
			}
			mysqltest.Exec(t, a.db, "TRUNCATE TABLE orders")
			mysqltest.Exec(t, a.db, "INSERT INTO orders (payload) VALUES ('a'), ('b'), ('c'), ('d')")
			return strings.Contains(mqnotify(t, a.config, "", "consume", "orders", "--group", "g", "--stop-at-end").err, "was truncated")
		}},
		{"consumer that tries rows again", []string{"tailer and", "besides, for consume --group", "besides, to try rows"}, func(t *testing.T, a account) bool {
			a.ownTable(t)
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_offset")
			if !a.deadLetters(t, a.config) {
				return false
			}
			succeed(t, a.root, "dead", "orders", "retry", "--all")
			return a.deadLetters(t, a.config) && // the retries fail, and make dead letters again
				succeed(t, a.root, "dead", "orders", "retry", "--all") != "0\n" &&
				a.can(t, "consume", "orders", "--group", "g", "--stop-at-end") &&
				len(mysqltest.Values[string](t, a.db, "SELECT id FROM mqnotify_dead_letter")) == 0
		}},
		{"lock", []string{"guard, for any lock:"}, func(t *testing.T, a account) bool {
			return a.can(t, "lock", "x", "--", "true")
		}},
		{"lease", []string{"besides, for lock --kind lease"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_lease")
			lock := []string{"lock", "x", "--kind", "lease", "--ttl", "6s", "--", "sleep"}
			first, again := a.can(t, append(lock, "2.5")...), a.can(t, append(lock, "0")...) // the first lasts long enough to renew the lease
			return first && again
		}},
		{"once", []string{"guard, for mqnotify once"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_once")
			return a.can(t, "once", "k", "--", "true") && a.can(t, "once", "k", "--reset")
		}},
		{"once every", []string{"guard, for once --every"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_interval")
			once := []string{"once", "k", "--every", "1h", "--", "true"}
			first, again := a.can(t, once...), a.can(t, once...)
			return first && again
		}},
		{"claims", []string{"guard, for Claims"}, func(t *testing.T, a account) bool {
			return a.guards(t, func(db *notify.DB) (err error) {
				claims := guard.NewClaims(db)
				for _, does := range []func() (bool, error){
					func() (bool, error) { return claims.Claim(t.Context(), "one") },
					func() (bool, error) { return claims.Follow(t.Context(), "one", "two") },
					func() (bool, error) { return claims.Claim(t.Context(), "two") },
					func() (bool, error) { return claims.Forget(t.Context(), "two") },
					func() (bool, error) { return claims.Forget(t.Context(), "one") },
				} {
					if _, err = does(); err != nil {
						break
					}
				}
				return err
			})
		}},
		{"row mutex", []string{"guard, for mutexes of kind row"}, func(t *testing.T, a account) bool {
			return a.guards(t, func(db *notify.DB) error {
				m, err := guard.NewMutex(db, "x", guard.MutexOptions{Kind: "row"})
				return errors.Join(err, lockTwice(t, m))
			})
		}},
		{"flag mutex", []string{"guard, for mutexes of kind flag"}, func(t *testing.T, a account) bool {
			return a.guards(t, func(db *notify.DB) error {
				m, err := guard.NewMutex(db, "x", guard.MutexOptions{Kind: "flag"})
				return errors.Join(err, lockTwice(t, m))
			})
		}},
		{"enqueuer", []string{"enqueuer:"}, func(t *testing.T, a account) bool {
			return a.can(t, "enqueue", "mail", "x")
		}},
		{"enqueuer of unique tasks", []string{"enqueuer:", "besides, for tasks with a unique key"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_task")
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_task_key")
			enter := []string{"enqueue", "mail", "--unique", "k", "x"}
			first, again := a.can(t, enter...), a.can(t, enter...)
			return first && again
		}},
		{"worker", []string{"worker:"}, func(t *testing.T, a account) bool { return a.works(t) }},
		{"worker with schedule", []string{"worker:", "besides, for recurring tasks"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "REPLACE INTO mqnotify_schedule (queue, name, cron, next_at, priority, retries, payload)"+
				" VALUES ('mail', 'n', '@yearly', '2020-01-01', 0, 0, 'x')")
			defer mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_schedule")
			return a.works(t)
		}},
		{"worker with unique schedule", []string{"worker:", "besides, for recurring tasks", "besides, for the unique keys"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "REPLACE INTO mqnotify_schedule (queue, name, cron, next_at, priority, retries, unique_key, payload)"+
				" VALUES ('mail', 'n', '@yearly', '2020-01-01', 0, 0, 'k', 'x')")
			defer mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_schedule")
			return a.works(t)
		}},
		{"worker that discards", []string{"worker:", "besides, for work --discard"}, func(t *testing.T, a account) bool {
			return a.works(t, "--discard")
		}},
		{"tasks", []string{"tasks:"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "UPDATE mqnotify_task SET state = 'done', claim_order = 0, state_at = UTC_TIMESTAMP(6)")
			mysqltest.Exec(t, a.db, "REPLACE INTO mqnotify_task_key VALUES ('mail', 'k', 0)")
			succeed(t, a.root, "enqueue", "mail", "x")
			id := mysqltest.Values[string](t, a.db, "SELECT MAX(id) FROM mqnotify_task")[0]
			return a.can(t, "tasks", "mail") && a.can(t, "tasks", "mail", "--cancel", id) && a.can(t, "tasks", "mail", "--retry", id) &&
				a.can(t, "tasks", "mail", "--prune", "0s")
		}},
		{"scheduler", []string{"scheduler:"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_schedule")
			store := []string{"schedule", "mail", "n", "--cron", "@daily"}
			first, again := a.can(t, store...), a.can(t, store...)
			return first && again && a.can(t, "schedule", "mail") && a.can(t, "schedule", "mail", "n", "--remove")
		}},
		{"ring's reader", []string{"ring:"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "ring", "create", "log", "--size", "2")
			succeed(t, a.root, "ring", "put", "log", "x")
			return a.can(t, "ring", "read", "log")
		}},
		{"ring's writer", []string{"ring:", "besides, for ring put"}, func(t *testing.T, a account) bool {
			succeed(t, a.root, "ring", "create", "log", "--size", "2")
			return a.can(t, "ring", "put", "log", "1", "2", "3") && a.can(t, "ring", "read", "log")
		}},
		{"ring's maker", []string{"ring:", "besides, for ring create"}, func(t *testing.T, a account) bool {
			mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_ring")
			can := a.can(t, "ring", "create", "log", "--size", "2")
			if can {
				succeed(t, a.root, "ring", "put", "log", "x")
			}
			return can && a.can(t, "ring", "read", "log")
		}},
		{"admin", []string{"admin:"}, func(t *testing.T, a account) bool {
			return a.makes(t, "init", "orders")
		}},
		{"admin with wake triggers", []string{"admin:", "besides, for the wake triggers"}, func(t *testing.T, a account) bool {
			for _, name := range []string{"mqnotify_wake", "mqnotify_wake_tables"} {
				mysqltest.Exec(t, a.db, "DROP PROCEDURE IF EXISTS "+name)
			}
			if !a.makes(t, "init", "orders") {
				return false
			}
			return strings.Count(mqnotify(t, a.config, "", "wake", "status").out, " ok\n") == 4
		}},
		{"admin with queue", []string{"admin:", "besides, for init --queue"}, func(t *testing.T, a account) bool {
			return a.makes(t, "init", "orders", "--queue", "mail")
		}},
		{"admin with trigger", []string{"admin:", "besides, for init --trigger"}, func(t *testing.T, a account) bool {
			return a.makes(t, "init", "orders", "--trigger", "orders")
		}},
	})
}

// role is a purpose of an account.
type role struct {
	name  string
	needs []string // the beginnings of the sections of grants that it needs
	works func(t *testing.T, a account) bool
}

// leastOfAll runs least for roles that may build on earlier ones. A section that an earlier role needs is not reduced again.
func leastOfAll(t *testing.T, roles []role) {
	var shown []string
	some := mysqltest.Many(1+len(roles)/3, 1+len(roles)/3, len(roles)) // a third of the roles, one after the other
	first := mysqltest.Random(t).IntN(len(roles) - some + 1)
	for i, r := range roles {
		if first <= i && i < first+some {
			t.Run(r.name, func(t *testing.T) { r.least(t, shown...) })
		}
		shown = append(shown, r.needs...)
	}
}

// least checks that the role works with its grants, and fails with any privilege less. The sections in shown are not reduced,
// because another role has shown that they are needed.
func (r role) least(t *testing.T, shown ...string) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) { r.leastOn(t, s, shown, "init", "--queue", "mail") })
}

// leastOn is least on one server. root first runs the command prepare.
func (r role) leastOn(t *testing.T, s *mysqltest.Server, before []string, prepare ...string) {
	root, db := database(t, s, "orders", "orders_changes")
	succeed(t, root, "produce", "orders", "x", "y", "z")
	succeed(t, root, prepare...)
	var shown, own []string
	for _, need := range r.needs {
		if slices.Contains(before, need) {
			shown = append(shown, grantsOf(root, need)...)
		} else {
			own = append(own, grantsOf(root, need)...)
		}
	}
	try := func(own []string, most time.Duration) bool {
		return r.works(t, account{s.User(t, root, slices.Concat(shown, own)...), root, db, most})
	}
	require.True(t, try(own, patience), "%q and %q must be enough", shown, own)
	all := without(own)
	if testing.Short() {
		one := mysqltest.Random(t).IntN(len(all))
		all = all[one : one+1]
	}
	for _, fewer := range all {
		require.False(t, try(fewer, 3*time.Second), "%q and %q are enough, so grants prints too much", shown, fewer)
	}
}

// With the printed grants, the trigger of another account wakes consumers, and so does a producer that may only insert and call
// mqnotify_wake.
func TestGrantsWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		root, db := database(t, s, "orders", "bulk")
		succeed(t, root, "wake", "install", "orders")
		for topic, mode := range map[string]string{"orders": "trigger", "bulk": "poll"} {
			grants := grantsOf(root, "tailer and", "all that listen or write")
			c := background(t, s.User(t, root, append(grants, "SELECT ON "+root.DBName+".bulk")...), "consume", topic, "--format", "payload")
			c.err.contains(t, "mode="+mode)
			mysqltest.Exec(t, db, "INSERT INTO "+topic+" (payload) VALUES ('foreign')")
			c.out.contains(t, "foreign\n")
			grants = grantsOf(root, "producer:", "all that listen or write")
			r := mqnotify(t, s.User(t, root, append(grants, "INSERT ON "+root.DBName+".bulk")...), "", "produce", topic, "ours")
			require.Equal(t, exitDone, r.code, r.err)
			require.Empty(t, r.err)
			c.out.contains(t, "ours\n")
			require.Equal(t, exitDone, c.interrupt(t).code)
		}
	})
}

// The servers ask for all privileges that grants prints for exact gaps.
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
		succeed(t, root, "init")
		require.Equal(t, "open-writers", writers(grantsOf(root, "or, on both")))
		if s.IsMariaDB() {
			return
		}
		exact := grantsOf(root, "besides, to know exactly")
		require.Equal(t, "metadata-locks", writers(exact))
		for _, fewer := range without(exact) {
			require.Equal(t, "unknown", writers(fewer), "%q is enough, so grants prints too much", fewer)
		}
	})
}
