package queue

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
)

// defaultAnswer is how long the statements of a packet may take before their session counts
// as lost. Lock waits of the session take at most 2 s.
const defaultAnswer = 10 * time.Second

// store sends a worker's statements, over a session of its own. One goroutine uses it.
type store struct {
	session    *core.Session
	queue      string
	ordered    bool
	owner      string
	visibility time.Duration
	answer     time.Duration // how long a packet may take
	skip       bool          // use SKIP LOCKED to claim
	skips      bool          // the server has SKIP LOCKED
	discard    bool
	lapses     int    // how often a task comes back after its claim has lapsed
	retried    func() // called for every transaction that is repeated
	log        *slog.Logger

	unknown [][2]string          // recurring tasks that can't be entered here, by name and cron
	locked  map[string]time.Time // recurring tasks whose unique keys are locked, and until when they are skipped

	passed    Task             // the last task that was claimed; empty if the next claim is a full scan
	scannedAt time.Time        // when the last full scan ended
	took      [2]time.Duration // how long the last two full scans took
	unscanned bool             // the last search found fewer tasks than wanted, and no full scan was due

	reserved reservations

	busy    bool // handlers have tasks while the next claim is made,
	surplus int  // and this many of the tasks that it may claim can't begin at once
	most    int  // the maximum number of tasks of the next claim; 0 means no limit
	cut     bool // the last claim left tasks that it has found
	short   bool // the last claim found fewer tasks than it asked for
	refused Task // the task that the last claim left because it must be handled alone

	conn *sqlx.Conn // not nil while stay holds the session's permit

	brief bool // a transaction whose lock wait times out is not run again
}

// skipLocked reports whether the server has SKIP LOCKED. Its statements touch no row, and fail
// if a table is missing or the account lacks a privilege of a worker, which an idle worker would
// otherwise notice only later.
func (l *store) skipLocked(ctx context.Context) (bool, error) {
	err := l.do(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		statements := []string{
			"UPDATE " + schema.TaskTable + " SET state = 'ready' WHERE FALSE",
			"DELETE k FROM " + schema.TaskTable + " t STRAIGHT_JOIN " + itsKey + " WHERE FALSE",
			"SELECT id FROM " + schema.TaskTable + " WHERE FALSE FOR UPDATE SKIP LOCKED",
		}
		if l.discard {
			statements = append([]string{"DELETE FROM " + schema.TaskTable + " WHERE FALSE"}, statements...)
		}
		for _, statement := range statements {
			if _, err := conn.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	if server.Is(err, server.ErrParse) {
		return false, nil
	}
	return err == nil, err
}

// do runs f over the session. The end of ctx does not interrupt it, because the driver would close the session.
// A server that does not answer ends it.
func (l *store) do(ctx context.Context, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	ctx = context.WithoutCancel(ctx)
	run := func(conn *sqlx.Conn) error {
		return l.session.Within(ctx, l.answer, func(ctx context.Context) error { return f(ctx, conn) })
	}
	if l.conn != nil {
		return run(l.conn)
	}
	return l.session.Do(ctx, run)
}

// stay runs f, which sends many statements, and holds the session's permit meanwhile: to release the permit between
// two short transactions would cost more than they do.
func (l *store) stay(f func() error) error {
	return l.session.Do(context.Background(), func(conn *sqlx.Conn) error {
		l.conn = conn
		defer func() { l.conn = nil }()
		return f()
	})
}

// transact runs f, which begins and ends a transaction, and repeats it as long as another transaction
// is in its way.
func (l *store) transact(ctx context.Context, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	mends := func(err error) bool {
		again := server.Retryable(err) && (!l.brief || !server.Is(err, server.ErrLockWaitTimeout))
		if again {
			l.retried()
		}
		return again
	}
	return server.Again(context.WithoutCancel(ctx), mends, func() error {
		return l.do(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			err := f(ctx, conn)
			if server.Number(err) != 0 { // a lost connection has nothing left to roll back
				if _, back := conn.ExecContext(ctx, "ROLLBACK"); back != nil {
					return errors.Join(err, back)
				}
			}
			return err
		})
	})
}

// The id is also the session's last insert id, for a worker that claims one task.
const claimColumns = "LAST_INSERT_ID(id), " + taskColumns

const taskColumns = "attempts, retries, lapses, priority, created_at, unique_key, payload"

// byID keeps a statement that names ids from reading the whole table, and from locking rows that
// other workers have. By EXPLAIN, MariaDB 11.8 does so for a hundred of a thousand rows that were just inserted.
const byID = " FORCE INDEX (PRIMARY)"

const forceClaim = " FORCE INDEX (claim)" // the statistics of a table that grows from nothing are misleading

// round settles outcomes and claims at most want tasks. started is when the claims began, from which on
// they are trusted.
func (l *store) round(ctx context.Context, outcomes []outcome, want int) (claimed []Task, started time.Time, err error) {
	begin := want - l.surplus
	if l.most > 0 {
		want = min(want, max(l.most, begin))
	}
	l.cut, l.refused = false, Task{}
	defer func() {
		if want > 0 && err == nil {
			l.short = len(claimed) < want && !l.cut
			l.asksNext(claimed, begin)
		}
	}()
	if !l.skip && !l.ordered {
		return l.roundByUpdate(ctx, outcomes, want, begin)
	}
	claimed, started, err = l.claimReserved(ctx, outcomes, want, begin)
	switch {
	case err != nil:
	case len(claimed) == 0:
		claimed, started, err = l.search(ctx, outcomes, want, begin)
	case len(claimed) < want && !l.cut: // these tasks are claimed even if the search fails; the next round reports its error
		busy := l.busy
		l.busy = true // no task that must be handled alone
		more, _, failed := l.search(ctx, nil, want-len(claimed), begin-len(claimed))
		l.busy = busy
		switch {
		case failed == nil:
			claimed = append(claimed, more...)
		case server.Number(failed) == 0: // perhaps inside a transaction: the session ends, and all its tasks are given back
			claimed, err = nil, failed
		}
	}
	for i := range claimed {
		claimed[i].Attempt++
	}
	switch {
	case err == nil && len(claimed) > 0:
		l.passed = claimed[len(claimed)-1]
	case err != nil || !l.scansAreSlow():
		l.passed = Task{}
	}
	l.reserved.count(len(claimed), want, time.Now())
	return claimed, started, err
}

// search is round with a search for tasks, in one transaction.
func (l *store) search(ctx context.Context, outcomes []outcome, want, begin int) (claimed []Task, started time.Time, err error) {
	passed := l.passed
	l.unscanned = false
	if want > 0 {
		l.reserved.tasks = nil // the search may find them
	}
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		claimed, l.cut, l.refused = nil, false, Task{}
		cursor := l.cursor(passed)
		passed = Task{} // a repetition is a full scan
		var first, second packet
		first.add(nil, "START TRANSACTION")
		if l.ordered {
			first.add(func(*sql.Rows) error { return nil },
				"SELECT name FROM "+schema.QueueTable+" WHERE name = ? FOR UPDATE", l.queue)
		}
		l.settle(&first, outcomes)
		if want == 0 {
			first.add(nil, "COMMIT")
			return first.send(ctx, conn)
		}
		started = time.Now()
		if want == 1 && begin > 0 {
			claimed, err = l.claimOne(ctx, conn, &first, cursor)
			return err
		}
		l.claim(&first, want, cursor, &claimed)
		begun := time.Now()
		if err := first.send(ctx, conn); err != nil {
			return err
		}
		few := cursor.ID != 0 && len(claimed) < want // the remaining tasks are before the cursor, or have another priority
		l.unscanned = few && !l.scanIsDue()
		if few && !l.unscanned {
			begun = time.Now()
			claimed, cursor = nil, Task{}
			var again packet
			l.claim(&again, want, cursor, &claimed)
			if err := again.send(ctx, conn); err != nil {
				return err
			}
		}
		l.scanned(cursor, begun)
		if claimed = l.chosen(claimed, begin); len(claimed) > 0 {
			l.mark(&second, among(idsOf(claimed)))
		}
		second.add(nil, "COMMIT")
		return second.send(ctx, conn)
	})
	return claimed, started, err
}

// claimOne ends a transaction that has begun with the claim of one task, all in one packet. The
// id goes from one statement to the next as the last insert id.
func (l *store) claimOne(ctx context.Context, conn *sqlx.Conn, p *packet, cursor Task) (claimed []Task, err error) {
	for {
		p.add(nil, "DO LAST_INSERT_ID(0)")
		l.claim(p, 1, cursor, &claimed)
		mark := "id = LAST_INSERT_ID()"
		if l.busy { // the same choice as in chosen
			mark += " AND lapses < " + strconv.Itoa(aloneFrom)
		}
		l.mark(p, mark)
		p.add(nil, "COMMIT")
		begun := time.Now()
		if err := p.send(ctx, conn); err != nil {
			return nil, err
		}
		l.scanned(cursor, begun)
		l.unscanned = len(claimed) == 0 && cursor.ID != 0 && !l.scanIsDue()
		if len(claimed) > 0 || cursor.ID == 0 || l.unscanned {
			return l.chosen(claimed, 1), nil
		}
		// The outcomes are settled. Remaining tasks are before the cursor, or have another priority.
		p, cursor = &packet{}, Task{}
		p.add(nil, "START TRANSACTION")
	}
}

// mark adds the statement that marks tasks as claimed.
func (l *store) mark(p *packet, where string) {
	p.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state = 'in progress', claim_order = 0, attempts = attempts + 1, owner = ?,"+
		" state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND WHERE "+where, l.owner, l.visibility.Microseconds())
}

// cursor returns the task behind which the next claim begins, or none for a full scan.
func (l *store) cursor(passed Task) Task {
	if l.ordered || !l.scansAreSlow() && time.Since(l.scannedAt) >= scanEach {
		return Task{}
	}
	return passed
}

// claim adds the statement that locks and reads the tasks to claim.
func (l *store) claim(p *packet, want int, passed Task, claimed *[]Task) {
	read := func(rows *sql.Rows) error { return l.scan(rows, claimed) }
	if passed.ID != 0 {
		p.add(read, l.claimQuery(want, " AND claim_order = ? AND state_at = "+noTime+" AND id > ?"), l.queue, passed.Priority, passed.ID)
		return
	}
	p.add(read, l.claimQuery(want, ""), l.claimArgs()...)
}

// claimQuery returns the statement that selects the tasks to claim among those that meet the condition.
func (l *store) claimQuery(want int, and string) string {
	if l.ordered {
		// The queue's row is locked, so no other session reads this at the same time.
		return "SELECT " + claimColumns + " FROM " + schema.TaskTable + forceClaim + " WHERE queue = ? AND state = 'ready' AND NOT EXISTS (" +
			"SELECT 1 FROM (SELECT id FROM " + schema.TaskTable + forceClaim +
			" WHERE queue = ? AND state IN ('in progress', 'failed') LIMIT 1) unsettled) ORDER BY claim_order, state_at, id LIMIT 1 FOR UPDATE"
	}
	return "SELECT " + claimColumns + " FROM " + schema.TaskTable + forceClaim +
		" WHERE queue = ? AND state = 'ready'" + and + " ORDER BY claim_order, state_at, id LIMIT " + strconv.Itoa(want) + " FOR UPDATE SKIP LOCKED"
}

func (l *store) claimArgs() []any {
	if l.ordered {
		return []any{l.queue, l.queue}
	}
	return []any{l.queue}
}

// roundByUpdate is round for servers without SKIP LOCKED. The change of the state is the
// claim, in a transaction of its own, and the owner marks the tasks that it has claimed.
func (l *store) roundByUpdate(ctx context.Context, outcomes []outcome, want, begin int) (claimed []Task, started time.Time, err error) {
	if len(outcomes) > 0 {
		err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
			var p packet
			p.add(nil, "START TRANSACTION")
			l.settle(&p, outcomes)
			p.add(nil, "COMMIT")
			return p.send(ctx, conn)
		})
	}
	if err != nil || want == 0 {
		return nil, time.Time{}, err
	}
	token := l.owner + "/" + strconv.FormatUint(claimNumber.Add(1)%tokens, 36)
	err = l.transact(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		claimed, l.cut, l.refused = nil, false, Task{}
		started = time.Now()
		var first, second packet
		first.add(nil, "START TRANSACTION")
		first.add(nil, "UPDATE "+schema.TaskTable+forceClaim+" SET state = 'in progress', claim_order = 0,"+
			" attempts = attempts + 1, owner = ?, state_at = UTC_TIMESTAMP(6) + INTERVAL ? MICROSECOND"+
			" WHERE queue = ? AND state = 'ready' ORDER BY claim_order, state_at, id LIMIT ?", token, l.visibility.Microseconds(), l.queue, want)
		first.add(func(rows *sql.Rows) error { return l.scan(rows, &claimed) }, "SELECT id, "+taskColumns+" FROM "+schema.TaskTable+forceClaim+
			" WHERE queue = ? AND state = 'in progress' AND claim_order = 0 AND owner = ? ORDER BY priority, id", l.queue, token)
		if err := first.send(ctx, conn); err != nil {
			return err
		}
		chosen := l.chosen(claimed, begin)
		if others := claimed[len(chosen):]; len(others) > 0 { // undo their claims
			second.add(nil, "UPDATE "+schema.TaskTable+byID+" SET state = 'ready', claim_order = priority, state_at = "+noTime+", owner = '',"+
				" attempts = attempts - 1 WHERE "+among(idsOf(others)))
			l.refused.Attempt--
		}
		claimed = chosen
		second.add(nil, "COMMIT")
		return second.send(ctx, conn)
	})
	return claimed, started, err
}

// claimNumber makes the tokens of a process's claims differ.
var claimNumber atomic.Uint64

const tokens = 36 * 36 * 36 * 36 * 36 * 36 // 6 digits

func (l *store) scan(rows *sql.Rows, into *[]Task) error {
	t := Task{Queue: l.queue}
	var created string
	var key sql.NullString
	if err := rows.Scan(&t.ID, &t.Attempt, &t.Retries, &t.Lapses, &t.Priority, &created, &key, &t.Payload); err != nil {
		return err
	}
	var err error
	if t.CreatedAt, err = parseTime(created); err != nil {
		return fmt.Errorf("task %d: created_at: %w", t.ID, err)
	}
	t.Unique = key.String
	*into = append(*into, t)
	return nil
}

func parseTime(text string) (time.Time, error) {
	t, err := time.Parse(time.DateTime, text) // also accepts fractions
	if err != nil {
		return t, fmt.Errorf("the server's time %q: %w", text, err)
	}
	return t, nil
}
