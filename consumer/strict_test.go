package consumer

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// A probe finds the locked row before the grace ends its gap: in strict order, where the rows after the gap were not read, however many
// they are, and if the condition excludes many of them.
func TestProbeFindsTheLockedRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const grace = 100 * time.Millisecond
		for _, c := range mysqltest.Some(t, []struct {
			name    string
			options Options
			after   string // the payloads of the rows after the locked one
		}{
			{"strict", Options{Strict: true}, "SELECT 'two'"},
			{"strict, many rows", Options{Strict: true}, fmt.Sprintf("SELECT 'two' UNION ALL (SELECT a.id FROM ids a JOIN ids b LIMIT %d)", idsAtOnce+100)},
			{"excluded rows", Options{Where: "payload <> 'x'"}, "SELECT 'two' UNION ALL (SELECT 'x' FROM ids)"},
			{"many excluded rows", Options{Where: "payload <> 'x'"}, fmt.Sprintf("SELECT 'two' UNION ALL (SELECT 'x' FROM ids a JOIN ids b LIMIT %d)", 2*idsAtOnce)},
		}) {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				db := openTopic(t, s)
				do(t, db, "CREATE TABLE ids (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO ids VALUES "+strings.Repeat("(NULL), ", 200)+"(NULL)")
				polls := newPolls()
				var got collected
				c.options.Group, c.options.From, c.options.Writers, c.options.Grace = "g", "beginning", writersUnknown, grace
				c.options.FlushInterval, c.options.wrap = -1, polls.wrap
				r := run(t, db, "orders", c.options, got.handler())
				conn := newConn(t, db)
				onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
				do(t, db, "INSERT INTO orders (payload) "+c.after)
				for start := time.Now(); time.Since(start) < 5*grace; { // each poll probes
					polls.wait(t)
					require.Zero(t, stored(t, db, "g"))
				}
				if c.options.Strict {
					require.Empty(t, got.payloads())
				}
				onConn(t, conn, "COMMIT")
				eventually(t, func() bool { return strings.Contains(strings.Join(got.payloads(), " "), "late") }, "the row is lost")
				eventually(t, func() bool { return len(got.payloads()) > 1 }, "the others do not come")
				if c.options.Strict {
					require.Equal(t, []string{"late", "two"}, got.payloads()[:2])
				}
				last := mysqltest.Value[uint64](t, db.Pool(), "SELECT MAX(id) FROM orders")
				eventually(t, func() bool { return stored(t, db, "g") == last }, "the grace does not end")
				require.NoError(t, r.end(t))
			})
		}
	})
}

// Members that share a group can have strict order, also after a gap. INNODB_TRX, which is the default on MariaDB, is often stale while
// the consumers of other tests read it.
func TestStrictShare(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 10)...)
		var got collected
		options := Options{Group: "g", From: "beginning", MembersShare: true, Strict: true, Writers: writersUnknown, Grace: 100 * time.Millisecond}
		c := run(t, db, "orders", options, got.handler())
		got.waitFor(t, numbers(1, 10)...)
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('11')")
		insert(t, db, "orders", "12")
		onConn(t, conn, "COMMIT", "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
		insert(t, db, "orders", "13")
		got.waitFor(t, numbers(1, 13)...)
		require.NoError(t, c.end(t))
	})
}

// A shared group whose partitions are missing fails with the remedy, which helps.
func TestShareWithoutPartitions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		options := Options{Group: "g", From: "beginning", MembersShare: true}
		var got, again collected
		c := run(t, db, "orders", options, got.handler())
		got.waitFor(t, "one")
		require.NoError(t, c.end(t))
		do(t, db, "DELETE FROM mqnotify_partition")
		err := run(t, db, "orders", options, got.handler()).wait(t)
		require.ErrorIs(t, err, position.ErrDamaged)
		require.ErrorContains(t, err, "mqnotify_partition")
		options.Reset = true
		c = run(t, db, "orders", options, again.handler())
		again.waitFor(t, "one")
		require.NoError(t, c.end(t))
	})
}

// A message table is read by its id.
func TestKeyOfAMessageTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "ALTER TABLE orders ADD seq BIGINT UNSIGNED NOT NULL DEFAULT 7 UNIQUE")
		err := run(t, db, "orders", Options{From: "beginning", Key: "seq", AcceptAnyKey: true}, (&collected{}).handler()).wait(t)
		require.ErrorIs(t, err, table.ErrNoKey)
		require.ErrorContains(t, err, "read by its id")
	})
}

// A consumer that needed no tables of mqnotify ends when another version makes them.
func TestOtherVersionWhileItRuns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		admin := attach(t, config) // without tables of mqnotify
		do(t, admin, "CREATE TABLE own (id INT AUTO_INCREMENT PRIMARY KEY, n INT)", "INSERT INTO own (n) VALUES (1)")
		db := attach(t, config)
		var got collected
		c := run(t, db, "own", Options{From: "beginning"}, got.handler())
		got.waitFor(t, `{"id":1,"n":1}`)
		do(t, admin, "CREATE TABLE mqnotify_schema (version INT)", "INSERT INTO mqnotify_schema VALUES (99)")
		for _, id := range mysqltest.Sessions(t, admin.Pool(), config.DBName, "") {
			mysqltest.KillSession(t, admin.Pool(), id)
		}
		do(t, admin, "INSERT INTO own (n) VALUES (2)")
		require.ErrorIs(t, c.wait(t), notify.ErrVersion)
	})
}

// locking is a waiter that locks the topic when the reader is about to wait, reports another head, and then ends the reader.
type locking struct {
	core.Waiter
	lock func()
	end  context.CancelCauseFunc
	n    uint64
}

func (l *locking) Head(context.Context) (core.Head, error) {
	l.lock()
	return core.Head{}, nil
}

func (l *locking) Wait(ctx context.Context, _ core.Head, _ time.Duration) (core.Head, error) {
	if l.n++; l.n == 3 {
		l.end(errDrained)
	}
	return core.Head{Null: sql.Null[uint64]{V: l.n, Valid: true}}, context.Cause(ctx)
}

// A reader that finds the table locked keeps its connection and its group, also if it has to check where the table ends.
func TestLockedWhileChecking(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		rows, _ := newAheadRows(t, db)
		require.NoError(t, rows.prepare(t.Context()))
		lock := newConn(t, db)
		ctx, end := context.WithCancelCause(t.Context())
		waiter := &locking{end: end, lock: func() { onConn(t, lock, "LOCK TABLES orders WRITE") }}
		var said mysqltest.Text
		r := &reader{
			rows: rows, source: unknown{}, wm: newWatermark(0, position.Set{}), waiter: waiter, pageRows: 100, limit: 100, origins: &origins{},
			replication: newReplication(rows.session, time.Minute), log: slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})),
		}
		require.ErrorIs(t, r.run(ctx), errDrained)
		require.Contains(t, said.String(), "read deferred")
		onConn(t, lock, "UNLOCK TABLES")
	})
}
