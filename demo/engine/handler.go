package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dolthub/go-mysql-server/server"
	"github.com/dolthub/go-mysql-server/sql/plan"
	vitess "github.com/dolthub/vitess/go/mysql"
	"github.com/dolthub/vitess/go/sqltypes"
	querypb "github.com/dolthub/vitess/go/vt/proto/query"
	"github.com/dolthub/vitess/go/vt/sqlparser"
)

// handler is the engine's handler, changed so that one transaction runs at a time. The first statement of a transaction that uses a table
// takes all tables, and the end of the transaction gives them back. A statement that uses no table does not wait for them; otherwise a
// session that waits in GET_LOCK would block the session that must release the lock.
type handler struct {
	*server.Handler
	base     func() context.Context // the context of every statement; the server's own never ends
	sessions *server.SessionManager
	locks    *locks
	listener *listener

	woken  sync.Map      // the connection ids of sessions whose statement mqnotify_wake ends
	tables chan struct{} // full while a session has the tables
	owner  atomic.Uint32 // that session's connection id, or 0
}

func newHandler(base func() context.Context, h *server.Handler, sessions *server.SessionManager, locks *locks, l *listener) *handler {
	return &handler{Handler: h, base: base, sessions: sessions, locks: locks, listener: l, tables: make(chan struct{}, 1)}
}

func (h *handler) ComQuery(_ context.Context, c *vitess.Conn, query string, callback vitess.ResultSpoolFn) error {
	query = h.routine(query)
	h.woken.Delete(c.ConnectionID)
	err := h.alone(c, query, func(ctx context.Context) error {
		return h.Handler.ComQuery(ctx, c, query, callback)
	})
	if _, woken := h.woken.LoadAndDelete(c.ConnectionID); woken && err != nil {
		return vitess.NewSQLError(1317, "70100", "Query execution was interrupted") // the engine sometimes has another number for it
	}
	return err
}

func (h *handler) ComMultiQuery(_ context.Context, c *vitess.Conn, query string, callback vitess.ResultSpoolFn) (rest string, err error) {
	err = h.alone(c, query, func(ctx context.Context) error {
		rest, err = h.Handler.ComMultiQuery(ctx, c, query, callback)
		return err
	})
	return rest, err
}

func (h *handler) ComPrepare(_ context.Context, c *vitess.Conn, query string, prepare *vitess.PrepareData) (fields []*querypb.Field, err error) {
	err = h.alone(c, query, func(ctx context.Context) error {
		fields, err = h.Handler.ComPrepare(ctx, c, query, prepare)
		return err
	})
	return fields, err
}

func (h *handler) ComStmtExecute(_ context.Context, c *vitess.Conn, prepare *vitess.PrepareData, callback func(*sqltypes.Result) error) error {
	return h.alone(c, prepare.PrepareStmt, func(ctx context.Context) error {
		return h.Handler.ComStmtExecute(ctx, c, prepare, func(r *sqltypes.Result) error {
			declareFraction(r.Fields)
			return callback(r)
		})
	})
}

// declareFraction declares six fraction digits for each TIMESTAMP. The engine declares the digits of a DATETIME, but none for a TIMESTAMP,
// so that the client would cut them off. Six digits may be more than the column has, which does no harm.
func declareFraction(fields []*querypb.Field) {
	for _, f := range fields {
		if f.Type == querypb.Type_TIMESTAMP {
			f.Decimals = 6
		}
	}
}

func (h *handler) ComResetConnection(c *vitess.Conn) error {
	defer h.giveBack(c)
	h.locks.releaseAll(c.ConnectionID)
	return h.Handler.ComResetConnection(c)
}

func (h *handler) ConnectionClosed(c *vitess.Conn) {
	defer h.listener.ended(c.Conn)
	h.Handler.ConnectionClosed(c)
	h.giveBack(c)
	h.locks.releaseAll(c.ConnectionID)
}

// alone runs the statement. If it uses a table, no other session uses one until the end of its transaction.
func (h *handler) alone(c *vitess.Conn, query string, run func(context.Context) error) error {
	base := h.base()
	if touchesTables(base, query) {
		if err := h.take(base, c); err != nil {
			return err
		}
	}
	err := run(base)
	if !h.inTransaction(base, c) {
		h.giveBack(c)
	}
	return err
}

// take takes the tables. It waits for another session's transaction for at most innodb_lock_wait_timeout, and then fails with the error of a
// row lock's timeout.
func (h *handler) take(base context.Context, c *vitess.Conn) error {
	if h.owner.Load() == c.ConnectionID {
		return nil
	}
	ctx, err := h.sessions.NewContextWithQuery(base, c, "")
	if err != nil {
		return err
	}
	value, err := ctx.GetSessionVariable(ctx, "innodb_lock_wait_timeout")
	if err != nil {
		return err
	}
	seconds, _ := value.(int64) // the variable's type: see correctVariables
	timeout := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timeout.Stop()
	select {
	case h.tables <- struct{}{}:
		h.owner.Store(c.ConnectionID)
		return nil
	case <-timeout.C:
		return vitess.NewSQLError(1205, "HY000", "Lock wait timeout exceeded; try restarting transaction")
	case <-base.Done():
		return vitess.NewSQLError(vitess.ERServerShutdown, vitess.SSServerShutdown, "Server shutdown in progress")
	}
}

// giveBack releases the tables if this session has them.
func (h *handler) giveBack(c *vitess.Conn) {
	if h.owner.CompareAndSwap(c.ConnectionID, 0) {
		<-h.tables
	}
}

// inTransaction reports whether the session's transaction goes on after its last statement. It drops the transaction of a failed autocommit
// statement, because the engine leaves it open with the old tables, and the next statement would commit these over later writes.
func (h *handler) inTransaction(base context.Context, c *vitess.Conn) bool {
	ctx, err := h.sessions.NewContextWithQuery(base, c, "")
	if err != nil || ctx.GetTransaction() == nil {
		return false
	}
	autocommit, err := plan.IsSessionAutocommit(ctx)
	if err == nil && autocommit && !ctx.GetIgnoreAutoCommit() {
		ctx.SetTransaction(nil)
		return false
	}
	return true
}

// touchesTables reports whether the first statement of the query may read or write a table. It returns true if it does not know.
func touchesTables(ctx context.Context, query string) bool {
	statement, _, err := sqlparser.ParseOne(ctx, query)
	if err != nil {
		return false // the statement will fail
	}
	switch statement.(type) {
	case *sqlparser.Begin, *sqlparser.Kill:
		return false
	case *sqlparser.Select, *sqlparser.Set:
	default:
		return true
	}
	found := false
	_ = sqlparser.Walk(func(node sqlparser.SQLNode) (bool, error) {
		if name, ok := node.(sqlparser.TableName); ok {
			// A column's name contains an empty table name, and a SELECT without FROM reads the table dual.
			found = found || !name.IsEmpty() && name.Name.String() != "dual"
		}
		return !found, nil
	}, statement)
	return found
}
