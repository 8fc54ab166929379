package consumer

import (
	"context"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// metadataLocks knows the writers by their metadata locks on the table, which a
// transaction takes before its first id and holds until it ends, a prepared XA
// transaction without a session included.
type metadataLocks struct {
	session *notify.Session
	schema  string
	table   string
}

// A lock of any other type permits writing, or is a DDL statement's, for which to
// wait does no harm.
const openByLocks = `SELECT OWNER_THREAD_ID, OWNER_EVENT_ID FROM performance_schema.metadata_locks
WHERE OBJECT_TYPE = 'TABLE' AND OBJECT_SCHEMA = ? AND OBJECT_NAME = ?
AND LOCK_TYPE NOT IN ('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')`

// lost counts the locks that the server could not show for want of memory.
const locksLost = `SHOW GLOBAL STATUS LIKE 'Performance_schema_metadata_lock_lost'`

func newMetadataLocks(ctx context.Context, session *notify.Session, t *table.Table) (*metadataLocks, error) {
	m := &metadataLocks{session, t.Schema, t.Name}
	if session.Capabilities().LowerCaseTableNames != 0 {
		m.schema, m.table = strings.ToLower(m.schema), strings.ToLower(m.table)
	}
	err := session.Do(ctx, func(conn *sqlx.Conn) error {
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
			return noSource("performance_schema.metadata_locks does not show this session's own lock")
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
	writers := make(open)
	err := m.session.Do(ctx, func(conn *sqlx.Conn) error {
		rows, err := conn.QueryContext(ctx, openByLocks, m.schema, m.table)
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var w writer
			if err := rows.Scan(&w.a, &w.b); err != nil {
				return err
			}
			writers[w] = true
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
			return noSource("the server lost metadata locks (raise performance_schema_max_metadata_locks)")
		}
		return nil
	})
	if err != nil {
		return nil, sourceError(WritersMetadataLocks, err)
	}
	return writers, nil
}

func (m *metadataLocks) pace() time.Duration { return 10 * time.Millisecond }
func (m *metadataLocks) name() Writers       { return WritersMetadataLocks }
