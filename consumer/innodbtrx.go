package consumer

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
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
//
// Many readers would keep the view stale. Therefore one query answers all consumers of a DB whose sessions are on the same server, and the
// DBs of a process take turns.
type innodbTrx struct {
	*sharedTrx
	session *core.Session
	need    uint64 // the number of the first query that may answer; 0 if the last one was answered
}

// sharedTrx is what the consumers of a DB share.
type sharedTrx struct {
	server string
	way    string        // reads the view itself, or calls the routine that reads it
	turn   chan struct{} // capacity 1: the caller that fills it may query, and owns last and names
	last   []trx         // the transactions at the last query that was fresh
	names  uint64        // how many writers have a name

	mu      sync.Mutex
	begun   uint64    // the number of the last query
	fresh   uint64    // the number of the last query that was fresh
	writers open      // its answer, which is never changed
	stale   int       // how often the view was stale recently
	next    time.Time // no query before this time
}

const (
	// trxMark begins the comment that contains the number of a query.
	trxMark = "/* mqnotify "
	trxView = "information_schema.INNODB_TRX"
	// maxStale bounds the waits for a view that stays stale, to 7 s.
	maxStale = 6
	// trxRest is how long the view is left unread, a little longer than the 100 ms after which the server refreshes it.
	trxRest = 105 * time.Millisecond
	// trxLimit bounds a query of the view, for which the other consumers wait. A session that takes longer is lost.
	trxLimit = 10 * time.Second
)

// trxReads has the time of the process's last read of the view, by server.
var trxReads sync.Map

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

func newSharedTrx(server, way string) *sharedTrx {
	return &sharedTrx{server: server, way: way, turn: make(chan struct{}, 1)}
}

// newInnoDBTrx tries the view, unless another consumer of the DB has. A stale view is no error, because other readers may be the cause.
func newInnoDBTrx(ctx context.Context, db *core.DB, session *core.Session, way string) (*innodbTrx, error) {
	server := session.Capabilities().Server()
	i := &innodbTrx{core.Kept(db, way+" "+server, func() *sharedTrx { return newSharedTrx(server, way) }), session, 0}
	i.mu.Lock()
	tried := i.fresh > 0
	i.mu.Unlock()
	if tried {
		return i, nil
	}
	return i, i.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		i.turn <- struct{}{} // for at most trxLimit
		defer func() { <-i.turn }()
		return i.query(ctx, i.session, conn)
	})
}

func (i *innodbTrx) open(ctx context.Context) (open, error) {
	i.mu.Lock()
	if i.need == 0 {
		i.need = i.begun + 1
	}
	i.mu.Unlock()
	if i.due() {
		err := i.session.Ask(ctx, func(ctx context.Context, conn *sqlx.Conn) error { // the session first: it may be busy for long
			select {
			case i.turn <- struct{}{}:
				defer func() { <-i.turn }()
			default: // another consumer queries
				return nil
			}
			if !i.due() {
				return nil
			}
			return i.query(ctx, i.session, conn)
		})
		if err != nil {
			if unfit(err) == nil { // the account has lost a privilege, for example: the next connection tries each way
				i.mu.Lock()
				i.fresh = 0
				i.mu.Unlock()
				err = fmt.Errorf("consumer: the open writers can no longer be found by %s: %v", i.way, err) //nolint:errorlint // it does not end Run
			}
			return nil, err
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.fresh < i.need {
		return nil, errStale
	}
	i.need = 0
	return i.writers, nil
}

// due reports whether the consumer needs a query, and may send it now.
func (i *innodbTrx) due() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.fresh < i.need && i.untilDue() <= 0
}

// untilDue returns how long the view must still be left unread. The caller holds mu.
func (v *sharedTrx) untilDue() time.Duration {
	wait := time.Until(v.next)
	if read, some := trxReads.Load(v.server); some {
		wait = max(wait, trxRest-time.Since(read.(time.Time))) //nolint:forcetypeassert // all values are
	}
	return wait
}

// query reads the view, and names its transactions if it was fresh. The caller has the turn.
func (v *sharedTrx) query(ctx context.Context, session *core.Session, conn *sqlx.Conn) error {
	v.mu.Lock()
	v.begun++
	v.mu.Unlock()
	trxReads.Store(v.server, time.Now())
	var now []trx
	err := session.Within(ctx, trxLimit, func(ctx context.Context) (err error) {
		now, err = v.read(ctx, session.ID(), conn)
		return err
	})
	trxReads.Store(v.server, time.Now())
	if err != nil && !server.Is(err, server.ErrConvertString) {
		return sourceError(v.way, err)
	}
	writers := make(open, len(now))
	for k := range now {
		t := &now[k]
		t.name = v.nameOf(*t)
		writers[t.name] = writers[t.name] || t.writes
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.next = time.Now().Add(trxRest)
	if now == nil {
		v.stale = min(v.stale+1, maxStale)
		v.next = v.next.Add(rand.N(trxRest << v.stale))
		return nil
	}
	if v.stale = max(0, v.stale-1); v.stale > 0 { // another process reads the view too
		v.next = v.next.Add(rand.N(trxRest << v.stale))
	}
	v.last, v.writers, v.fresh = now, writers, v.begun
	return nil
}

// nameOf returns the name that the transaction had at the last query. Its id is certain; only without it the others are compared.
func (v *sharedTrx) nameOf(t trx) writer {
	for _, before := range v.last {
		if before.id == t.id && t.assigned() {
			return before.name
		}
	}
	for _, before := range v.last {
		if before.same(t) {
			return before.name
		}
	}
	v.names++
	return writer(v.names)
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
func (v *sharedTrx) read(ctx context.Context, session uint64, conn *sqlx.Conn) (all []trx, err error) {
	nonce := nonces.Add(1)
	mark := fmt.Sprintf("%s%d %d */", trxMark, session, nonce)
	query := "SELECT " + mark + ` trx_id, trx_mysql_thread_id, CAST(trx_started AS CHAR), COALESCE(trx_query, ''),
		trx_tables_in_use + trx_tables_locked + trx_lock_structs + trx_rows_modified > 0
		FROM ` + trxView
	if v.way == writersRoutine {
		query = fmt.Sprintf("CALL %s(%d)", schema.OpenWritersRoutine, nonce)
	}
	if _, err := conn.ExecContext(ctx, "START TRANSACTION WITH CONSISTENT SNAPSHOT"); err != nil {
		return nil, err
	}
	defer func() {
		if _, rollback := conn.ExecContext(ctx, "ROLLBACK"); err == nil {
			err = rollback
		}
	}()
	rows, err := conn.QueryContext(ctx, query)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	fresh := false
	all = make([]trx, 0, 8)
	for rows.Next() {
		var t trx
		var thread sql.Null[uint64]
		var statement string
		if err := rows.Scan(&t.id, &thread, &t.started, &statement, &t.writes); err != nil {
			return nil, err
		}
		t.thread = thread.V
		if t.thread == session {
			if strings.Contains(statement, trxView) && !strings.Contains(statement, trxMark) { // a stale view may show any statement of the session
				return nil, noSourceError("something between this program and the server removes the comments from statements")
			}
			fresh = fresh || strings.Contains(statement, mark)
			continue
		}
		all = append(all, t)
	}
	if !fresh {
		all = nil
	}
	return all, rows.Err()
}

// pace is random while an answer is missing, so that the DBs that wait for their turn do not come in step.
func (i *innodbTrx) pace() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.need == 0 {
		return trxRest
	}
	return max(trxRest/4, i.untilDue()) + rand.N(trxRest/4)
}

// late returns true because InnoDB assigns the first id of a transaction before it starts the transaction
// (ha_innobase::write_row), and the view shows only started transactions.
func (i *innodbTrx) late() bool { return true }

func (i *innodbTrx) name() string { return i.way }
