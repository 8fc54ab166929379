package notify

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/jmoiron/sqlx"
)

const (
	// phases is how many names a ring has. Rings are at least a millisecond apart,
	// so that a phase is not held again by the same session before 254 ms are over.
	phases = 256
	// fresh is for how long a waiter may believe that what it saw held was not let
	// go and taken again: well below the time of all phases.
	fresh = 200 * time.Millisecond
	// skipped is how many phases a waiter may have been late, or a ring have passed
	// over, to be found again without a search. Each makes every wait longer to read for
	// the server.
	skipped = 2
)

// ring are the lock names of which a session always holds two, its phase and the next
// one, and which it goes around. Each session has its own: nobody takes a phase that
// another left.
type ring struct {
	base   string // the lock of the one who may turn it
	lanes  int
	phases int
}

func (r ring) name(holder uint64, lane int, phase uint64) string {
	return r.base + ":" + strconv.FormatUint(holder, 36) + ":" + strconv.FormatUint(uint64(lane), 36) +
		":" + strconv.FormatUint(phase%uint64(r.phases), 36)
}

// sign is what tells in a list of statements who waits on the ring.
func (r ring) sign() string { return "/* " + r.base + " */" }

// ear is the lock of who waits on the ring of holder, taken when it knew the phase:
// from then on it is woken for certain. For a ring of one lane.
func (r ring) ear(holder uint64) string { return r.name(holder, 1, 0) }

// turner is the side that turns a ring, and so wakes who waits.
type turner struct {
	ring
	session     *Session
	phase, next uint64 // the same when it has yet to be readied
	firstOnce   bool   // phase 0 does not come again
}

// all is an expression of a call for each lane, and its arguments.
func (t *turner) all(call string, phase uint64) (expression string, args []any) {
	calls := make([]string, t.lanes)
	for lane := range t.lanes {
		calls[lane] = call
		args = append(args, t.name(t.session.ID(), lane, phase))
	}
	return strings.Join(calls, " + "), args
}

// take takes the first two phases.
func (t *turner) take(ctx context.Context) error {
	t.next = t.phase
	return t.asked(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		if taken, err := t.get(ctx, conn, t.phase); err != nil || !taken {
			return cmp.Or(err, errNotOurs)
		}
		return t.takeNext(ctx, conn)
	})
}

// turn lets the phase go; what becomes the phase is held already, so that there is
// never a moment without a lock to wait on, and who is woken knows at once which.
// Nothing else in the statement: who is woken often gets the processor only when it has
// ended. extra are columns to read in it.
func (t *turner) turn(ctx context.Context, extra string, extraArgs []any, into ...any) error {
	if err := t.ready(ctx); err != nil {
		return err
	}
	return t.asked(ctx, func(ctx context.Context, conn *sqlx.Conn) error {
		release, args := t.all("RELEASE_LOCK(?)", t.phase)
		var released sql.NullInt64
		err := conn.QueryRowxContext(ctx, "SELECT "+release+extra, append(args, extraArgs...)...).Scan(append([]any{&released}, into...)...)
		if err != nil {
			return err
		}
		if released.Int64 != int64(t.lanes) {
			return errNotOurs
		}
		t.phase = t.next
		return nil
	})
}

// ready takes another phase after a turn, for the next.
func (t *turner) ready(ctx context.Context) error {
	if t.next != t.phase {
		return nil
	}
	return t.asked(ctx, t.takeNext)
}

var errStuck = errors.New("another session holds the next phases")

func (t *turner) takeNext(ctx context.Context, conn *sqlx.Conn) error {
	for next := t.phase + 1; next <= t.phase+skipped; next++ {
		if t.firstOnce && next%uint64(t.phases) == 0 {
			continue
		}
		taken, err := t.get(ctx, conn, next)
		if err != nil {
			return err
		}
		if taken {
			t.next = next
			return nil
		}
		// Whoever was killed between taking and releasing it holds this one.
		drop, args := t.all("COALESCE(RELEASE_LOCK(?), 0)", next)
		if _, err := conn.ExecContext(ctx, "SELECT "+drop, args...); err != nil {
			return err
		}
	}
	return errStuck
}

// get forgets the session's last insert id, too: an Insert into a table that gives out none
// would find an earlier one's.
func (t *turner) get(ctx context.Context, conn *sqlx.Conn, phase uint64) (taken bool, err error) {
	query, args := t.all("GET_LOCK(?, 0)", phase)
	var sum sql.NullInt64
	var id uint64
	err = conn.QueryRowxContext(ctx, "SELECT "+query+", LAST_INSERT_ID(0)", args...).Scan(&sum, &id)
	return sum.Int64 == int64(t.lanes), err
}

func (t *turner) asked(ctx context.Context, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	if err := t.session.ask(ctx, answer, f); err != nil {
		return fmt.Errorf("notify: ring: %w", err)
	}
	return nil
}

// drop lets both phases go, which wakes who waits: the one to wait on last, so that
// who is woken finds none.
func (t *turner) drop(ctx context.Context) error {
	next, args := t.all("COALESCE(RELEASE_LOCK(?), 0)", t.next)
	query, last := t.all("COALESCE(RELEASE_LOCK(?), 0)", t.phase)
	return t.asked(context.WithoutCancel(ctx), func(ctx context.Context, conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, "SELECT "+next+" + "+query, append(args, last...)...)
		return err
	})
}

// watcher is the side that waits on a ring. What it holds true is: its phase was
// held by holder at the time at, as the first of its two, and whoever read rows after
// that may wait for it, since each turn after at lets it go.
type watcher struct {
	ring
	session *Session
	lane    int
	holder  uint64
	phase   uint64
	at      string // by the server's clock
	lossy   *lossy

	conn   *sqlx.Conn // while it keeps the session's turn
	parker *sql.Stmt  // the park, once one was sent that carries nothing

	carry   carrying // goes with the next park
	carried bool     // it had a result
}

// stay runs f, which parks again and again. Meanwhile the session is not given out of
// hand: between two statements that would cost more than they do. ctx does not end.
func (w *watcher) stay(ctx context.Context, f func() error) error {
	return w.session.Do(ctx, func(conn *sqlx.Conn) error {
		w.conn = conn
		defer func() {
			if w.parker != nil {
				_ = w.parker.Close()
			}
			w.conn, w.parker = nil, nil
		}()
		return f()
	})
}

// find looks for the phase that holder holds, from the one after the last known.
func (w *watcher) find(ctx context.Context, holder uint64) (found bool, err error) {
	if w.holder != holder {
		w.holder, w.phase = holder, uint64(w.phases-1)
	}
	const most = 64 // names in a statement
	for from := 1; from <= w.phases && !found; from += most {
		if found, err = w.first(ctx, from, min(from+most-1, w.phases)); err != nil {
			return false, err
		}
	}
	if !found {
		return false, nil
	}
	// It may be the second that is held, whose release comes a ring late: a search does not
	// see what was taken behind it. What precedes a phase was taken before it.
	return w.first(ctx, w.phases-skipped, w.phases)
}

// first looks for the first phase that is held of those that are so many steps ahead.
func (w *watcher) first(ctx context.Context, from, to int) (found bool, err error) {
	var query strings.Builder
	query.WriteString("SELECT CASE ?")
	args := []any{w.holder}
	for step := from; step <= to; step++ {
		query.WriteString(" WHEN IS_USED_LOCK(?) THEN " + strconv.Itoa(step))
		args = append(args, w.name(w.holder, w.lane, w.phase+uint64(step)))
	}
	query.WriteString(" END, SYSDATE(6), CONNECTION_ID()")
	var step sql.Null[uint64]
	if err := askOne(ctx, w.session, query.String(), args, &step, &w.at); err != nil {
		return false, fmt.Errorf("notify: find the phase: %w", err)
	}
	w.phase += step.V
	return step.Valid, nil
}

// lend lets the holder know that it is heard.
func (w *watcher) lend(ctx context.Context) error {
	var taken sql.NullInt64
	return askOne(ctx, w.session, "SELECT GET_LOCK(?, 0), CONNECTION_ID()", []any{w.ear(w.holder)}, &taken)
}

var parkQuery = func() string {
	query := "IF(SYSDATE(6) <= ?, GET_LOCK(?, ?), 2), RELEASE_LOCK(?), CASE ?"
	for step := range skipped + 1 {
		query += " WHEN IS_USED_LOCK(?) THEN " + strconv.Itoa(step)
	}
	return query + " END, SYSDATE(6), CONNECTION_ID()"
}()

// park waits until the phase is let go, or timeout has passed. woken tells that
// something happened since the phase was seen; armed, that the watcher knows a phase
// again that is held, so that the next park may follow without a find.
//
// Taking and releasing in one statement hands the lock on to the next who waits.
// What was seen too long ago, by the server's clock, is not waited for: the phase
// may have come round again. It is called in stay.
func (w *watcher) park(ctx context.Context, timeout time.Duration) (woken, armed bool, err error) {
	at, err := time.Parse(time.DateTime, w.at)
	if err != nil {
		return false, false, fmt.Errorf("notify: wait: the server's clock: %w", err)
	}
	believed := at.Add(w.believes()).Format(time.DateTime + ".000000")
	name := w.name(w.holder, w.lane, w.phase)
	args := make([]any, 0, 6+skipped)
	args = append(args, believed, name, seconds(timeout), name, w.holder)
	for step := range skipped + 1 {
		args = append(args, w.name(w.holder, w.lane, w.phase+uint64(step)))
	}
	var waited, released sql.NullInt64
	var step sql.Null[uint64]
	if err := w.session.Err(); err != nil {
		return false, false, err
	}
	err = w.session.Within(ctx, timeout+answer, func(ctx context.Context) error {
		return w.ask(ctx, args, &waited, &released, &step, &w.at)
	})
	if err != nil {
		return false, false, fmt.Errorf("notify: wait: %w", err)
	}
	if !waited.Valid || waited.Int64 == letGo && released.Int64 != 1 {
		err := errNull
		w.session.fail(err) // it may hold the phase
		return false, false, fmt.Errorf("notify: wait: %w", err)
	}
	w.phase += step.V
	switch waited.Int64 {
	case waitedInVain:
		return step.V != 0, step.Valid, nil
	case letGo: // held again: a stall was as long as a round, and it may be the second of the two
		return true, step.Valid && step.V != 0, nil
	default: // seen too long ago, and so may be the second
		return true, false, nil
	}
}

// What became of a park's wait. Otherwise it was none: what was seen is too old.
const (
	waitedInVain = 0
	letGo        = 1
)

// ask runs the park's packet.
func (w *watcher) ask(ctx context.Context, args []any, into ...any) error {
	w.carried = false
	query, args, carried, err := w.carry.with(ctx, w.conn, "SELECT "+w.sign()+" "+parkQuery, args)
	if err != nil {
		return err
	}
	rows, err := w.send(ctx, query, args, carried)
	if err != nil {
		return err
	}
	defer rows.Close()
	var id uint64
	if err := scanResult(rows, append(into, &id)...); err != nil {
		return err
	}
	if id != w.session.ID() {
		return noGateError{errShared}
	}
	if carried != nil {
		w.carried = true
		return w.carry.deliver(rows, carried)
	}
	return rows.Close()
}

// send sends the packet. A park alone is prepared: for the server that is half the work,
// and of a thousand who are woken each sends one. Several statements can't be.
func (w *watcher) send(ctx context.Context, query string, args []any, carried Piggyback) (*sql.Rows, error) {
	if carried != nil {
		return w.conn.QueryContext(ctx, query, args...)
	}
	if w.parker == nil {
		var err error
		if w.parker, err = w.conn.PrepareContext(ctx, query); err != nil {
			return nil, err
		}
	}
	return w.parker.QueryContext(ctx, args...)
}

// believes is for how long the watcher waits for what it saw.
func (w *watcher) believes() time.Duration {
	w.lossy.pause()
	if w.lossy != nil && w.lossy.old {
		return time.Hour
	}
	return fresh
}

// errShared is what a session finds behind a proxy that deals its statements out.
var errShared = errors.New("statements of one connection reach several sessions of the server: a proxy shares them among its clients")

// askOne reads the one row of a query whose last column is CONNECTION_ID(), which
// must be the session's.
func askOne(ctx context.Context, session *Session, query string, args []any, into ...any) error {
	return session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		return scanOne(conn.QueryRowxContext(ctx, query, args...), session, into...)
	})
}

func scanOne(row *sqlx.Row, session *Session, into ...any) error {
	var id uint64
	if err := row.Scan(append(into, &id)...); err != nil {
		return err
	}
	if id != session.ID() {
		return noGateError{errShared}
	}
	return nil
}
