package consumer

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// quiet is a logger for consumers that lose their connections all the time.
var quiet = slog.New(slog.DiscardHandler)

// eventually waits for a condition.
func eventually(tb testing.TB, condition func() bool, what string, args ...any) {
	tb.Helper()
	mysqltest.Eventually(tb, fmt.Sprintf(what, args...), condition)
}

// do runs statements over the pool.
func do(tb testing.TB, db *notify.DB, statements ...string) {
	tb.Helper()
	for _, statement := range statements {
		mysqltest.Exec(tb, db.Pool(), statement)
	}
}

// newConn returns a session of its own, which ends with the test or by leave.
func newConn(tb testing.TB, db *notify.DB) *sql.Conn {
	tb.Helper()
	conn, err := db.Pool().DB.Conn(tb.Context())
	require.NoError(tb, err)
	tb.Cleanup(func() { leave(conn) })
	return conn
}

// leave ends a connection's session, so that it does not return to the pool.
func leave(conn *sql.Conn) {
	_ = conn.Raw(func(any) error { return driver.ErrBadConn })
	_ = conn.Close()
}

// onConn runs statements on a connection.
func onConn(tb testing.TB, conn *sql.Conn, statements ...string) {
	tb.Helper()
	for _, statement := range statements {
		_, err := conn.ExecContext(context.WithoutCancel(tb.Context()), statement)
		require.NoError(tb, err, statement)
	}
}

// number returns the server's error number.
func number(err error) uint16 {
	var failed *mysql.MySQLError
	if errors.As(err, &failed) {
		return failed.Number
	}
	return 0
}

// polls counts how often a reader has asked for the open writers.
type polls struct {
	source
	n     *atomic.Int64
	old   *atomic.Int64 // answers that were too old because another test reads the view: the reader asks again
	stale *atomic.Bool  // while it is set, every answer is too old
	then  func(n int64) // is called when the server has answered for the nth time, if not nil
}

func newPolls() polls {
	return polls{n: new(atomic.Int64), old: new(atomic.Int64), stale: new(atomic.Bool)}
}

func (l polls) open(ctx context.Context) (open, error) {
	open, err := l.source.open(ctx)
	n := l.n.Add(1)
	if errors.Is(err, errStale) {
		l.old.Add(1)
	}
	if l.then != nil {
		l.then(n)
	}
	if err == nil && l.stale.Load() {
		return nil, errStale
	}
	return open, err
}

// wrap is for Options.wrap.
func (l polls) wrap(s source) source { return polls{s, l.n, l.old, l.stale, l.then} }

// wait returns when the reader has polled twice after this call began: the second poll
// has begun after it.
func (l polls) wait(tb testing.TB) {
	tb.Helper()
	want := l.n.Load() + 2
	eventually(tb, func() bool { return l.n.Load() >= want }, "the reader does not poll for its gaps")
}

// lockHolder returns the session that holds a group's lock, or 0 if none does.
func lockHolder(tb testing.TB, db *notify.DB, group string) uint64 {
	tb.Helper()
	return mysqltest.Value[uint64](tb, db.Pool(), "SELECT COALESCE(IS_USED_LOCK(?), 0)", groupLock(db.Name(), "orders", group))
}

// stored returns the group's settled offset.
func stored(tb testing.TB, db *notify.DB, group string) uint64 {
	tb.Helper()
	return mysqltest.Value[uint64](tb, db.Pool(), "SELECT settled FROM mqnotify_offset WHERE topic = 'orders' AND group_name = ?", group)
}

// numbers returns the numbers from one to another, inclusive.
func numbers(from, to int) []string {
	var all []string
	for i := from; i <= to; i++ {
		all = append(all, strconv.Itoa(i))
	}
	return all
}
