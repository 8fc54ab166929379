package consumer

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
)

// innodbTrx reads the writers from information_schema.INNODB_TRX. The view is a cache, which the server refreshes only if no session
// has read it for 100 ms. Every query therefore carries a number of its own in its text. The view shows the texts of the running
// statements, so a view that shows this number was refreshed while this statement ran, which is later than the head was read.
type innodbTrx struct {
	session *core.Session
	way     string // reads the view itself, or calls the routine that reads it
	last    []trx  // the transactions at the last query
	names   uint64 // how many writers have a name
	stale   int    // how often the view was stale recently
}

const (
	// trxMark begins the comment that contains the number of a query.
	trxMark = "/* mqnotify "
	trxView = "information_schema.INNODB_TRX"
	// maxStale bounds the waits for a view that stays stale, to 7 s.
	maxStale = 6
)

// nonces numbers the queries of the process, because consumers may share a session.
var nonces atomic.Uint64

// trx is a transaction as the view shows it.
type trx struct {
	name    writer
	id      uint64 // 0 or an invented one until the transaction writes
	thread  uint64 // 0 when its session is gone, as a prepared XA transaction's is
	started string // in whole seconds
	writes  bool
}

// newInnoDBTrx tries the view. A stale view is no error, because other readers may be the cause.
func newInnoDBTrx(ctx context.Context, session *core.Session, way string) (*innodbTrx, error) {
	i := &innodbTrx{session: session, way: way}
	if _, err := i.open(ctx); err != nil && !errors.Is(err, errStale) {
		return nil, err
	}
	return i, nil
}

func (i *innodbTrx) open(ctx context.Context) (open, error) {
	now, err := i.read(ctx)
	if server.Is(err, server.ErrConvertString) || err == nil && now == nil {
		i.stale = min(i.stale+1, maxStale)
		return nil, errStale
	}
	if err != nil {
		return nil, sourceError(i.way, err)
	}
	i.stale = max(0, i.stale-1)
	writers := make(open, len(now))
	for k := range now {
		t := &now[k]
		for _, before := range i.last {
			if before.same(*t) {
				t.name = before.name
				break
			}
		}
		if t.name == 0 {
			i.names++
			t.name = writer(i.names)
		}
		writers[t.name] = writers[t.name] || t.writes
	}
	i.last = now
	return writers, nil
}

// same reports whether t and later may be the same transaction. In doubt it returns true: the reader then waits up to a second
// longer for a writer that seems to go on, until the next transaction of its session has another start time.
func (t trx) same(later trx) bool {
	if t.id == later.id && t.assigned() {
		return true
	}
	if t.assigned() && later.assigned() {
		return false
	}
	return t.started == later.started && (t.thread == later.thread || later.thread == 0)
}

// assigned reports whether the id is the transaction's final one. Until a transaction
// writes, MariaDB shows 0, and MySQL a number made from an address.
func (t trx) assigned() bool { return t.id > 0 && t.id < 1<<48 }

// read reads the view inside a transaction of the session, because the view shows a session only if it has one. It returns nil if
// the view was refreshed before this statement.
func (i *innodbTrx) read(ctx context.Context) (all []trx, err error) {
	nonce := nonces.Add(1)
	mark := fmt.Sprintf("%s%d %d */", trxMark, i.session.ID(), nonce)
	query := "SELECT " + mark + ` trx_id, trx_mysql_thread_id, CAST(trx_started AS CHAR), COALESCE(trx_query, ''),
		trx_tables_in_use + trx_tables_locked + trx_lock_structs + trx_rows_modified > 0
		FROM ` + trxView
	if i.way == writersRoutine {
		query = fmt.Sprintf("CALL %s(%d)", schema.OpenWritersRoutine, nonce)
	}
	fresh := false
	err = i.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) (err error) {
		if _, err := conn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
			return err
		}
		defer func() {
			if _, rollback := conn.ExecContext(ctx, "ROLLBACK"); err == nil {
				err = rollback
			}
		}()
		rows, err := conn.QueryContext(ctx, query)
		if err != nil {
			return err
		}
		defer rows.Close()
		all = make([]trx, 0, 8)
		for rows.Next() {
			var t trx
			var thread sql.Null[uint64]
			var statement string
			if err := rows.Scan(&t.id, &thread, &t.started, &statement, &t.writes); err != nil {
				return err
			}
			t.thread = thread.V
			if t.thread == i.session.ID() {
				if strings.Contains(statement, trxView) && !strings.Contains(statement, trxMark) { // a stale view may show any statement of the session
					return noSourceError("something between this program and the server removes the comments from statements")
				}
				fresh = fresh || strings.Contains(statement, mark)
				continue
			}
			all = append(all, t)
		}
		return rows.Err()
	})
	if err != nil || !fresh {
		return nil, err
	}
	return all, nil
}

// pace leaves the view unread for the 100 ms after which the server refreshes it. Every query restarts this time, so several
// readers in step could keep the view stale forever. While the view is stale, every reader therefore waits longer, for a random time.
func (i *innodbTrx) pace() time.Duration {
	const rest = 110 * time.Millisecond
	if i.stale == 0 {
		return rest
	}
	return rest + rand.N(rest<<i.stale)
}

// late returns true because InnoDB assigns the first id of a transaction before it starts the transaction
// (ha_innobase::write_row), and the view shows only started transactions.
func (i *innodbTrx) late() bool { return true }

func (i *innodbTrx) name() string { return i.way }
