package doctor

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

// transaction is an open transaction that may still write.
type transaction struct {
	Session uint64 `db:"session"` // 0 for a prepared XA transaction without a session
	Account string `db:"account"`
	Seconds int64  `db:"seconds"` // the age
}

func (t transaction) age() time.Duration { return time.Duration(t.Seconds) * time.Second }

// openTransactions leaves out transactions whose session has ended, because INNODB_TRX may be a moment old.
const openTransactions = `SELECT COALESCE(t.trx_mysql_thread_id, 0) AS session, COALESCE(CONCAT(p.USER, '@', p.HOST), '') AS account,
	TIMESTAMPDIFF(SECOND, t.trx_started, NOW()) AS seconds
FROM information_schema.INNODB_TRX AS t
LEFT JOIN information_schema.PROCESSLIST AS p ON p.ID = t.trx_mysql_thread_id
WHERE t.trx_tables_in_use + t.trx_tables_locked + t.trx_lock_structs + t.trx_rows_modified > 0
AND (p.ID IS NOT NULL OR COALESCE(t.trx_mysql_thread_id, 0) = 0)
ORDER BY t.trx_started, session`

// transactions reports old open transactions. Consumers go on past their rows, and the gaps stay open until they end.
func transactions(ctx context.Context, t *topic) ([]Result, error) {
	holders, scoped, err := t.holders(ctx)
	if err != nil {
		return nil, err
	}
	prepared, err := t.prepared(ctx)
	if err != nil {
		return nil, err
	}
	open, err := t.openTransactions(ctx)
	switch {
	case server.NoPrivilege(err):
		return ageless(holders, prepared), nil
	case err != nil:
		return nil, err
	}
	whose := "on the server"
	if scoped {
		open, whose = pinning(open, holders), "of the table"
	}
	var results []Result
	for _, o := range open {
		if o.age() > t.options.Old {
			results = append(results, old(o, prepared))
		}
	}
	switch {
	case len(results) > 0:
	case len(open) == 0:
		results = append(results, ok("no open writer %s", whose))
	default:
		results = append(results, ok("open writers %s: %d, the oldest for %v", whose, len(open), open[0].age()))
	}
	return results, nil
}

// openTransactions lists the open transactions. MySQL refuses while a statement runs whose text is not UTF-8, such as an INSERT of bytes;
// so it tries again. The list is a cache, which the server refreshes only if no session has read it for 100 ms.
func (t *topic) openTransactions(ctx context.Context) (open []transaction, err error) {
	for tries := 15; ; tries-- {
		err = t.all(ctx, &open, openTransactions)
		if !server.Is(err, server.ErrConvertString) || tries == 0 {
			return open, err
		}
		select {
		case <-time.After(150 * time.Millisecond):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

const pins = "ids past its first can't count as settled before it ends (and in strict order they wait)"

func old(o transaction, prepared []string) Result {
	if o.Session == 0 {
		return warning(endPrepared(prepared), "a prepared XA transaction that no session has is open for %v: %s", o.age(), pins)
	}
	remedy := fmt.Sprintf("let its program end it, or KILL %d", o.Session)
	if len(prepared) > 0 {
		remedy += "; if it is a prepared XA transaction, which KILL does not end: " + endPrepared(prepared)
	}
	return warning(remedy, "a transaction of session %d (%s) is open for %v: %s", o.Session, o.Account, o.age(), pins)
}

// ageless returns the findings for an account that may not see transactions, and therefore not their age.
func ageless(holders []holder, prepared []string) []Result {
	var results []Result
	if len(prepared) > 0 {
		results = append(results, warning(endPrepared(prepared), "prepared XA transactions on the server: %d, of unknown age; "+
			"ids of their rows can't count as settled before they end", len(prepared)))
	}
	switch {
	case len(holders) > 0:
		results = append(results, ok("open writers of the table: %d; their age is unknown (the account needs PROCESS)", len(holders)))
	case len(prepared) == 0:
		results = append(results, ok("none that this account can see (it needs PROCESS)"))
	}
	return results
}

// holder is the owner of a metadata lock that permits writing.
type holder struct {
	Thread  uint64 `db:"thread"`
	Event   uint64 `db:"event"`
	Session uint64 `db:"session"` // 0 if the thread has ended
}

// holders returns the holders of locks on the topic's table. seen is false if the account can't see them.
func (t *topic) holders(ctx context.Context) (all []holder, seen bool, err error) {
	if t.way != "metadata-locks" {
		return nil, false, nil
	}
	schema, name := t.table.Schema, t.table.Name
	if t.caps.LowerCaseTableNames != 0 {
		schema, name = strings.ToLower(schema), strings.ToLower(name)
	}
	err = t.all(ctx, &all, `SELECT DISTINCT l.OWNER_THREAD_ID AS thread, l.OWNER_EVENT_ID AS event, COALESCE(t.PROCESSLIST_ID, 0) AS session
		FROM performance_schema.metadata_locks AS l LEFT JOIN performance_schema.threads AS t ON t.THREAD_ID = l.OWNER_THREAD_ID
		WHERE l.OBJECT_TYPE = 'TABLE' AND l.OBJECT_SCHEMA = ? AND l.OBJECT_NAME = ? AND l.LOCK_STATUS = 'GRANTED'
		AND l.LOCK_TYPE NOT IN ('SHARED', 'SHARED_HIGH_PRIO', 'SHARED_READ', 'SHARED_READ_ONLY')`, schema, name)
	return all, err == nil, err
}

// pinning returns the transactions that hold locks on the table, the oldest first. A prepared transaction's lock may have the thread of a
// session that does something else now. So if there are more locks than the sessions' own transactions explain, each prepared transaction
// may be the holder.
func pinning(open []transaction, holders []holder) []transaction {
	held := map[uint64]int{}
	for _, h := range holders {
		held[h.Session]++
	}
	unexplained := len(holders)
	var pin []transaction
	for _, o := range open {
		if o.Session != 0 && held[o.Session] > 0 {
			held[o.Session]--
			unexplained--
			pin = append(pin, o)
		}
	}
	for _, o := range open {
		if o.Session == 0 && unexplained > 0 {
			pin = append(pin, o)
		}
	}
	slices.SortStableFunc(pin, func(a, b transaction) int { return cmp.Compare(b.Seconds, a.Seconds) })
	return pin
}
