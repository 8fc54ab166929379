package main

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// account is an account under test: how it connects, how root connects, and a pool of root's.
type account struct {
	config, root *mysql.Config
	db           *sqlx.DB
	most         time.Duration // how long an action may take that the account can do
}

func (a account) can(t *testing.T, args ...string) bool {
	r := mqnotify(t, a.config, "", args...)
	if r.code != exitDone {
		t.Log(r.err)
	}
	return r.code == exitDone
}

// makes reports whether an init into an empty database works, and so do the tables that it makes.
func (a account) makes(t *testing.T, args ...string) bool {
	mysqltest.Exec(t, a.db, "DROP TABLE IF EXISTS orders, mqnotify_flag, mqnotify_offset, mqnotify_dead_letter, mqnotify_retry, mqnotify_origin, mqnotify_schema, mqnotify_once,"+
		" mqnotify_claim, mqnotify_interval, mqnotify_mutex_row, mqnotify_mutex_flag, mqnotify_lease,"+
		" mqnotify_queue, mqnotify_task, mqnotify_task_key, mqnotify_schedule, mqnotify_ring, mqnotify_ring_slot, mqnotify_notification, mqnotify_snapshot")
	defer succeed(t, a.root, "init", "orders")
	if !a.can(t, args...) {
		return false
	}
	_, err := a.db.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('x')")
	return err == nil
}

// ownTable drops a column of orders, which is then no message table.
func (a account) ownTable(t *testing.T) {
	if len(mysqltest.Values[string](t, a.db, "SELECT 1 FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'orders' AND COLUMN_NAME = 'headers'")) > 0 {
		mysqltest.Exec(t, a.db, "ALTER TABLE orders DROP headers")
	}
}

// deadLetters reports whether a consumer of the account can store every message as a dead letter.
func (a account) deadLetters(t *testing.T, config *mysql.Config) bool {
	r := mqnotify(t, config, "", "consume", "orders", "--group", "g", "--from", "1", "--reset", "--stop-at-end", "--attempts", "1", "--", "false")
	return r.code == exitDone
}

// works reports whether a worker does a task.
func (a account) works(t *testing.T, flags ...string) bool { return a.worksOn(t, "mail", flags...) }

func (a account) worksOn(t *testing.T, queue string, flags ...string) bool {
	mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_task")
	succeed(t, a.root, "enqueue", queue, "x")
	w := background(t, a.config, append(append([]string{"work", queue}, flags...), "--", "true")...)
	ended := false
	did := within(t, patience, func() bool {
		select {
		case <-w.ended:
			ended = true
			return true
		default:
			return len(mysqltest.Values[string](t, a.db, "SELECT 1 FROM mqnotify_task WHERE state <> 'done'")) == 0 &&
				len(mysqltest.Values[string](t, a.db, "SELECT 1 FROM mqnotify_schedule WHERE next_at < UTC_TIMESTAMP(6)")) == 0
		}
	})
	return did && !ended && w.interrupt(t).code == exitDone
}

// guards reports whether guards work in a program of the account.
func (a account) guards(t *testing.T, does func(db *notify.DB) error) bool {
	t.Helper()
	mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_claim WHERE follows IS NOT NULL")
	for _, table := range []string{"claim", "mutex_row", "mutex_flag"} {
		mysqltest.Exec(t, a.db, "DELETE FROM mqnotify_"+table)
	}
	db, err := notify.OpenConfig(a.config)
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	if err = does(db); err != nil {
		t.Log(err)
	}
	return err == nil
}

// lockTwice locks the mutex, fails to lock it again, and releases it.
func lockTwice(t *testing.T, m *guard.Mutex) error {
	t.Helper()
	held, err := m.TryLock(t.Context())
	if err != nil {
		return err
	}
	if _, err = m.TryLock(t.Context()); errors.Is(err, notify.ErrNotAcquired) {
		err = nil
	}
	return errors.Join(err, held.Release(t.Context()))
}

// within reports whether a condition becomes true in time.
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

// grantsOf returns the statements of the sections that begin with one of these texts, without their GRANT.
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

// without returns every way to leave out of the grants one privilege, or one column of a privilege.
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
			privilege, columns, _ := strings.Cut(strings.TrimSuffix(each[k], ")"), " (")
			names := strings.Split(columns, ",")
			for n := range names {
				if len(names) == 1 {
					break
				}
				less := slices.Clone(each)
				less[k] = privilege + " (" + strings.Join(slices.Delete(slices.Clone(names), n, n+1), ",") + ")"
				all = append(all, slices.Replace(slices.Clone(grants), i, i+1, strings.Join(less, ", ")+" ON "+on))
			}
		}
	}
	return all
}
