package notify

import (
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
	// so that a phase is not held again by the same session before 256 ms are over.
	phases = 256
	// fresh is for how long a waiter may believe that what it saw held was not let
	// go and taken again: well below the time of all phases.
	fresh = 200 * time.Millisecond
	// skipped is how many phases a waiter may have been late, or a ring have passed
	// over, to be found again without a search. Each makes every wait longer to read for
	// the server.
	skipped = 2
)

// ring are the lock names of which a session always holds one, its phase, and which
// it goes around. Each session has its own: nobody takes a phase that another left.
type ring struct {
	base   string // the lock of the one who may turn it
	lanes  int
	phases int
}

func (r ring) name(holder uint64, lane int, phase uint64) string {
	return r.base + ":" + strconv.FormatUint(holder, 36) + ":" + strconv.FormatUint(uint64(lane), 36) +
		":" + strconv.FormatUint(phase%uint64(r.phases), 36)
}

// ear is the lock of who waits on the ring of holder, taken when it knew the phase:
// from then on it is woken for certain. For a ring of one lane.
func (r ring) ear(holder uint64) string { return r.name(holder, 1, 0) }

// turner is the side that turns a ring, and so wakes who waits.
type turner struct {
	ring
	session *Session
	phase   uint64
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

// take takes the first phase.
func (t *turner) take(ctx context.Context) error {
	query, args := t.all("GET_LOCK(?, 0)", t.phase)
	err := t.session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		var taken sql.NullInt64
		if err := conn.QueryRowxContext(ctx, "SELECT "+query, args...).Scan(&taken); err != nil {
			return err
		}
		if taken.Int64 != int64(t.lanes) {
			return errNotOurs
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("notify: take the first phase: %w", err)
	}
	return nil
}

var errStuck = errors.New("another session holds the next phases")

// turn takes the next phase and lets the one before go, in one statement, so that
// there is never a moment without a lock to wait on. extra are columns to read in
// the same statement.
func (t *turner) turn(ctx context.Context, extra string, extraArgs []any, into ...any) error {
	err := t.session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		for next := t.phase + 1; next <= t.phase+skipped; next++ {
			get, args := t.all("GET_LOCK(?, 0)", next)
			release, released := t.all("RELEASE_LOCK(?)", t.phase)
			args = append(append(args, t.lanes), released...)
			query := "SELECT IF(" + get + " = ?, " + release + ", -1)" + extra
			var turned sql.NullInt64
			if err := conn.QueryRowxContext(ctx, query, append(args, extraArgs...)...).Scan(append([]any{&turned}, into...)...); err != nil {
				return err
			}
			if turned.Valid && turned.Int64 == int64(t.lanes) {
				t.phase = next
				return nil
			}
			if !turned.Valid || turned.Int64 >= 0 {
				return errNotOurs
			}
			// Whoever was killed between taking and releasing it holds the next one.
			drop, args := t.all("COALESCE(RELEASE_LOCK(?), 0)", next)
			if _, err := conn.ExecContext(ctx, "SELECT "+drop, args...); err != nil {
				return err
			}
		}
		return errStuck
	})
	if err != nil {
		return fmt.Errorf("notify: ring: %w", err)
	}
	return nil
}

// drop lets the phase go, which wakes who waits for it.
func (t *turner) drop(ctx context.Context) error {
	query, args := t.all("COALESCE(RELEASE_LOCK(?), 0)", t.phase)
	return t.session.ask(context.WithoutCancel(ctx), answer, func(ctx context.Context, conn *sqlx.Conn) error {
		_, err := conn.ExecContext(ctx, "SELECT "+query, args...)
		return err
	})
}

// watcher is the side that waits on a ring. What it holds true is: its phase was
// held by holder at the time at, and whoever read rows after that may wait for it,
// since each turn after at lets it go.
type watcher struct {
	ring
	session *Session
	lane    int
	holder  uint64
	phase   uint64
	at      string // by the server's clock
	lossy   *lossy

	conn *sqlx.Conn // while it keeps the session's turn
}

// stay runs f, which parks again and again. Meanwhile the session is not given out of
// hand: between two statements that would cost more than they do. ctx does not end.
func (w *watcher) stay(ctx context.Context, f func() error) error {
	return w.session.Do(ctx, func(conn *sqlx.Conn) error {
		w.conn = conn
		defer func() { w.conn = nil }()
		return f()
	})
}

// find looks for the phase that holder holds, from the one after the last known.
func (w *watcher) find(ctx context.Context, holder uint64) (found bool, err error) {
	if w.holder != holder {
		w.holder, w.phase = holder, uint64(w.phases-1)
	}
	const most = 64 // names in a statement
	for from := 1; from <= w.phases; from += most {
		var query strings.Builder
		query.WriteString("SELECT CASE ?")
		args := []any{holder}
		for step := from; step < min(from+most, w.phases+1); step++ {
			query.WriteString(" WHEN IS_USED_LOCK(?) THEN " + strconv.Itoa(step))
			args = append(args, w.name(holder, w.lane, w.phase+uint64(step)))
		}
		query.WriteString(" END, SYSDATE(6), CONNECTION_ID()")
		var step sql.Null[uint64]
		if err := askOne(ctx, w.session, query.String(), args, &step, &w.at); err != nil {
			return false, fmt.Errorf("notify: find the phase: %w", err)
		}
		if step.Valid {
			w.phase += step.V
			return true, nil
		}
	}
	return false, nil
}

// lend lets the holder know that it is heard.
func (w *watcher) lend(ctx context.Context) error {
	var taken sql.NullInt64
	return askOne(ctx, w.session, "SELECT GET_LOCK(?, 0), CONNECTION_ID()", []any{w.ear(w.holder)}, &taken)
}

var parkQuery = func() string {
	query := "SELECT IF(SYSDATE(6) <= ?, GET_LOCK(?, ?), 2), RELEASE_LOCK(?), CASE ?"
	for step := 1; step <= skipped; step++ {
		query += " WHEN IS_USED_LOCK(?) THEN " + strconv.Itoa(step)
	}
	return query + " WHEN IS_USED_LOCK(?) THEN 0 END, SYSDATE(6), CONNECTION_ID()"
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
	for step := 1; step <= skipped; step++ {
		args = append(args, w.name(w.holder, w.lane, w.phase+uint64(step)))
	}
	args = append(args, name)
	var waited, released sql.NullInt64
	var step sql.Null[uint64]
	if err := w.session.Err(); err != nil {
		return false, false, err
	}
	// For a context that ends the driver wakes a goroutine at each statement.
	late := time.AfterFunc(timeout+answer, func() { w.session.fail(errNoAnswer) })
	err = scanOne(w.conn.QueryRowxContext(ctx, parkQuery, args...), w.session, &waited, &released, &step, &w.at)
	late.Stop()
	if err != nil {
		return false, false, fmt.Errorf("notify: wait: %w", err)
	}
	if !waited.Valid || waited.Int64 == 1 && released.Int64 != 1 {
		err := errNull
		w.session.fail(err) // it may hold the phase
		return false, false, fmt.Errorf("notify: wait: %w", err)
	}
	w.phase += step.V
	return waited.Int64 != 0 || step.V != 0, step.Valid, nil
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
