package consumer

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// metadataLocks knows the writers by their metadata locks on the table, which a
// transaction takes before its first id and holds until it ends. MySQL only:
// MariaDB lets go of the locks of a prepared XA transaction whose session leaves.
type metadataLocks struct {
	session *notify.Session
	schema  string
	table   string
	last    []metadataLock // what was held at the last question
	names   uint64         // how many writers were given a name
}

// metadataLock is a lock as the view shows it: its owner is the session's thread,
// and the event in which it was taken, since a busy session is never without one.
//
// At XA PREPARE a lock moves to a context without a session, which keeps the
// thread but not the event. So a lock that is new keeps alive the names of those
// that its thread had before: it may be the same transaction. A writer whose
// session is busy counts as ended one transaction late.
type metadataLock struct {
	thread, event uint64
	name          writer
	before        []writer
}

// A lock of any other type permits writing, or is a DDL statement's, for which to
// wait does no harm.
const openByLocks = `SELECT OWNER_THREAD_ID, OWNER_EVENT_ID FROM performance_schema.metadata_locks
WHERE OBJECT_TYPE = 'TABLE' AND OBJECT_SCHEMA = ? AND OBJECT_NAME = ?
AND LOCK_TYPE NOT IN ('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')`

// locksLost counts the locks that the server could not show for want of memory.
const locksLost = `SHOW GLOBAL STATUS LIKE 'Performance_schema_metadata_lock_lost'`

func newMetadataLocks(ctx context.Context, session *notify.Session, t *table.Table) (*metadataLocks, error) {
	m := &metadataLocks{session: session, schema: t.Schema, table: t.Name}
	if session.Capabilities().MariaDB {
		return nil, sourceError(WritersMetadataLocks,
			noSourceError("MariaDB does not keep the metadata locks of prepared XA transactions: use "+string(WritersInnoDBTrx)))
	}
	if session.Capabilities().LowerCaseTableNames != 0 {
		m.schema, m.table = strings.ToLower(m.schema), strings.ToLower(m.table)
	}
	err := session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		// A lock of this session's own shows whether locks are shown at all, and
		// under the name that is asked for.
		tx, err := conn.BeginTxx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }()
		if _, err := tx.ExecContext(ctx, "SELECT 1 FROM "+ident.Quote(t.Name)+" LIMIT 0"); err != nil {
			return err
		}
		var own int
		err = tx.GetContext(ctx, &own, `SELECT COUNT(*) FROM performance_schema.metadata_locks AS l
			JOIN performance_schema.threads AS t ON t.THREAD_ID = l.OWNER_THREAD_ID
			WHERE l.OBJECT_TYPE = 'TABLE' AND l.OBJECT_SCHEMA = ? AND l.OBJECT_NAME = ? AND t.PROCESSLIST_ID = CONNECTION_ID()`,
			m.schema, m.table)
		if err != nil {
			return err
		}
		if own == 0 {
			return noSourceError("performance_schema.metadata_locks does not show this session's own lock")
		}
		return tx.Rollback()
	})
	if err == nil {
		_, err = m.open(ctx)
	}
	if err != nil {
		return nil, sourceError(WritersMetadataLocks, err)
	}
	return m, nil
}

func (m *metadataLocks) open(ctx context.Context) (open, error) {
	now, err := m.read(ctx, nil)
	if err == nil && m.anyGone(now) {
		// The view is no snapshot: a lock on its way to another owner may be missed
		// once, not twice.
		now, err = m.read(ctx, now)
	}
	if err != nil {
		return nil, sourceError(WritersMetadataLocks, err)
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

// identify gives a lock its names.
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

// read adds the locks that are held now to those given.
func (m *metadataLocks) read(ctx context.Context, now []metadataLock) ([]metadataLock, error) {
	err := m.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		rows, err := conn.QueryContext(ctx, openByLocks, m.schema, m.table)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var lock metadataLock
			if err := rows.Scan(&lock.thread, &lock.event); err != nil {
				return err
			}
			if !held(now, lock) {
				now = append(now, lock)
			}
		}
		if err := rows.Err(); err != nil {
			return err
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
func (m *metadataLocks) name() Writers       { return WritersMetadataLocks }
