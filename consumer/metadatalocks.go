package consumer

import (
	"context"
	"database/sql"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
)

// metadataLocks reads the writers from the metadata locks on the table. A transaction takes its lock before its first id and holds
// it until it ends. MySQL only: MariaDB releases the locks of a prepared XA transaction whose session leaves.
type metadataLocks struct {
	session *core.Session
	query   string
	schema  string
	table   string
	last    []metadataLock // the locks at the last query
	names   uint64         // how many writers have a name
}

// metadataLock is a lock as the view shows it. Its owner is the session's thread and the event in which it was taken, because a
// busy session has the lock of one transaction after another.
//
// At XA PREPARE a lock moves to a context without a session, which keeps the
// thread but not the event. A new lock therefore keeps the names of the earlier locks of its thread alive, because it may belong to
// the same transaction. The transaction of a busy session counts as ended one transaction late.
type metadataLock struct {
	thread, event uint64
	name          writer
	before        []writer
}

// Locks of all other types permit writing, or belong to a DDL statement; to wait for that does no harm.
const readLocks = "('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')"

// openByLocks returns the statement that reads the locks. The statement itself reads the table, so it has a lock of its own, which
// must be in the result. This proves every time that the view shows locks, and under the name that is asked for. The view does not
// show a lock that was taken while the instrument wait/lock/metadata/sql/mdl was off.
func openByLocks(table string) string {
	return `SELECT OWNER_THREAD_ID, OWNER_EVENT_ID, LOCK_TYPE IN ` + readLocks + ` FROM performance_schema.metadata_locks
		WHERE OBJECT_TYPE = 'TABLE' AND OBJECT_SCHEMA = ? AND OBJECT_NAME = ?
		AND (LOCK_TYPE NOT IN ` + readLocks + ` OR OWNER_THREAD_ID = (SELECT THREAD_ID FROM performance_schema.threads WHERE PROCESSLIST_ID = CONNECTION_ID()))
		AND NOT EXISTS (SELECT 1 FROM ` + ident.Quote(table) + ` WHERE FALSE)`
}

// locksLost reads how many locks the server could not show because it lacked memory.
const locksLost = `SHOW GLOBAL STATUS LIKE 'Performance_schema_metadata_lock_lost'`

func newMetadataLocks(ctx context.Context, session *core.Session, t *table.Table) (*metadataLocks, error) {
	m := &metadataLocks{session: session, query: openByLocks(t.Name), schema: t.Schema, table: t.Name}
	if session.Capabilities().MariaDB {
		return nil, sourceError(writersMetadataLocks,
			noSourceError("MariaDB does not keep the metadata locks of prepared XA transactions: use "+string(writersInnoDBTrx)))
	}
	if session.Capabilities().LowerCaseTableNames != 0 {
		m.schema, m.table = strings.ToLower(m.schema), strings.ToLower(m.table)
	}
	if _, err := m.open(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

func (m *metadataLocks) open(ctx context.Context) (open, error) {
	now, err := m.read(ctx, nil)
	if err == nil && m.anyGone(now) {
		// The view is not a snapshot: one query may miss a lock that moves to another owner, two in a row can't.
		now, err = m.read(ctx, now)
	}
	if err != nil {
		return nil, sourceError(writersMetadataLocks, err)
	}
	writers := make(open, len(now))
	for i := range now {
		lock := &now[i]
		m.identify(lock)
		writers[lock.name] = true
		for _, name := range lock.before {
			writers[name] = true
		}
	}
	m.last = now
	return writers, nil
}

// identify sets a lock's names: a known lock keeps them, a new one gets one and those of its thread's earlier locks.
func (m *metadataLocks) identify(lock *metadataLock) {
	for _, before := range m.last {
		if before.thread != lock.thread {
			continue
		}
		if before.event == lock.event {
			lock.name, lock.before = before.name, before.before
			return
		}
		lock.before = append(lock.before, before.name)
	}
	m.names++
	lock.name = writer(m.names)
}

func held(now []metadataLock, lock metadataLock) bool {
	return slices.ContainsFunc(now, func(l metadataLock) bool { return l.thread == lock.thread && l.event == lock.event })
}

func (m *metadataLocks) anyGone(now []metadataLock) bool {
	return slices.ContainsFunc(m.last, func(before metadataLock) bool { return !held(now, before) })
}

// read appends the locks that are held now to those in now.
func (m *metadataLocks) read(ctx context.Context, now []metadataLock) ([]metadataLock, error) {
	err := m.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		rows, err := conn.QueryContext(ctx, m.query, m.schema, m.table)
		if err != nil {
			return err
		}
		defer rows.Close()
		shown := false // the view shows this session's own lock
		for rows.Next() {
			var thread, event sql.Null[uint64]
			var reads bool
			if err := rows.Scan(&thread, &event, &reads); err != nil {
				return err
			}
			if !thread.Valid || !event.Valid {
				return noSourceError("a lock in performance_schema.metadata_locks has no owner (raise performance_schema_max_thread_instances)")
			}
			lock := metadataLock{thread: thread.V, event: event.V}
			if shown = shown || reads; !reads && !held(now, lock) {
				now = append(now, lock)
			}
		}
		if err := rows.Err(); err != nil {
			return err
		}
		if !shown {
			return noSourceError("performance_schema.metadata_locks does not show this session's own lock: the instrument wait/lock/metadata/sql/mdl is off")
		}
		var name string
		var lost int
		if err := conn.QueryRowContext(ctx, locksLost).Scan(&name, &lost); err != nil {
			return err
		}
		if lost > 0 {
			return noSourceError("the server lost metadata locks (raise performance_schema_max_metadata_locks)")
		}
		return nil
	})
	return now, err
}

func (m *metadataLocks) pace() time.Duration { return 10 * time.Millisecond }
func (m *metadataLocks) late() bool          { return false }
func (m *metadataLocks) name() string        { return writersMetadataLocks }

// olderWriters is metadataLocks and the transactions that were open when it began. Those may have taken their locks
// while the instrument was off.
type olderWriters struct {
	*metadataLocks
	view  *innodbTrx // nil once they have ended
	there open       // the older transactions that may write, by view's names; nil before the first query of view
}

// byView is added to the names of view, so that they differ from those of metadataLocks.
const byView writer = 1 << 48

func (b *olderWriters) open(ctx context.Context) (open, error) {
	writers, err := b.metadataLocks.open(ctx)
	if err != nil || b.view == nil {
		return writers, err
	}
	now, err := b.view.open(ctx)
	if err != nil {
		return nil, err
	}
	if b.there == nil {
		b.there = maps.Clone(now)
		maps.DeleteFunc(b.there, func(_ writer, writes bool) bool { return !writes })
	}
	maps.DeleteFunc(b.there, func(name writer, _ bool) bool { _, still := now[name]; return !still })
	for name := range b.there {
		writers[byView+name] = true
	}
	if len(b.there) == 0 {
		b.view = nil
	}
	return writers, nil
}

func (b *olderWriters) pace() time.Duration {
	if b.view == nil {
		return b.metadataLocks.pace()
	}
	return b.view.pace()
}
