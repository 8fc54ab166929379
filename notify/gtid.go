package notify

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrNoGTID is returned where commits can't be waited for: a server other than MySQL,
// one without a binary log, or with a gtid_mode other than ON.
var ErrNoGTID = errors.New("no GTIDs to wait for")

var errNoResult = errors.New("the server gave no result")

const (
	// gtidWait is the longest wait for a commit. Within it a waiter notices that
	// gtid_mode was changed, which the server ends no wait for, and leaves, so that the
	// mode can be set to OFF, which the server refuses while somebody waits.
	gtidWait = 90 * time.Second
	// gtidTrial is the longest wait for a commit of an origin that was not seen to grow.
	gtidTrial = time.Second
)

// GTID is the waiter that sleeps until any transaction commits on the server, and
// then looks whether the head moved: no writer has to know of it. It needs MySQL
// with gtid_mode=ON and a binary log; elsewhere Head and Wait return ErrNoGTID. Its
// Heads are its own: numbers of the changes that it told of.
//
// It waits for the transaction that comes next, and knows its number from before it
// looked at the head, or had the caller look. A change that this look did not see
// became visible after it, and servers make a change visible before they count its
// transaction as executed. So it is none of those that were executed before the
// look: its number is the one waited for, or a later one, which the server counts
// after the former.
//
// That holds for what the server itself numbers, one after the other. Commits that
// bear other numbers end a wait late, at the latest after its bound: of a second
// origin, on a server where several grow at once (another primary of a group, tagged
// GTIDs, a replica that is written to); out of order (binlog_order_commits=OFF, a
// replica with replica_preserve_commit_order=OFF); without a number
// (sql_log_bin=0). On a replica the first commit that it takes over shows the
// waiter, within a second, what to wait for.
//
// As long as the commits of the server are those of the topic it does not look after
// a commit, but tells of it at once: a look costs more than the wake, and all who
// wait would look together. It looks when it waits again, and one wake for nothing
// makes it careful.
type GTID struct {
	db      *DB
	session *Session
	source  Source
	next    gtidNext
	floor   Fibonacci // the least time between two wakes that were for nothing

	told  uint64 // the last change, 0 before the first
	known Head   // at the last look
	blind bool   // a change was told since, of a commit that may have been for nothing
	hits  int    // commits in a row that were for the topic

	carry carrying

	turn   chan struct{} // one slot: who has it may use the session
	once   sync.Once
	closed chan struct{}
	err    error // of closing
}

// changes numbers those of all waiters: a Head of another one ends a Wait, it must not
// be taken for the waiter's own.
var changes atomic.Uint64

// trusted is how many commits in a row make the next one believed.
const trusted = 2

var _ Carrier = (*GTID)(nil)

// NewGTID waits for commits over session, which becomes the waiter's and is closed
// with it, and holds no lock: a server does not notice that the client of such a
// wait is gone. It is ended with KILL QUERY over db's pool, and a context that ends
// in a Wait ends the session. When the pool has no connection within half a second
// the session is cut off, and its wait stays on the server for 90 s at most.
func NewGTID(db *DB, session *Session, source Source) *GTID {
	return &GTID{
		db: db, session: session, source: source, next: newGTIDNext(session.Capabilities()),
		floor: Fibonacci{Min: time.Millisecond, Max: 20 * time.Millisecond},
		turn:  make(chan struct{}, 1), closed: make(chan struct{}),
	}
}

// Carry implements [Carrier].
func (g *GTID) Carry(p Piggyback) { g.carry.Piggyback = p }

// Head implements [Waiter].
func (g *GTID) Head(ctx context.Context) (Head, error) {
	err := g.within(ctx, func(ctx context.Context) error {
		_, err := g.look(ctx, 0)
		return err
	})
	return g.head(), err
}

func (g *GTID) head() Head { return Head{g.told, g.told > 0} }

// Wait implements [Waiter].
func (g *GTID) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	deadline := time.Now().Add(bound)
	err := g.within(ctx, func(ctx context.Context) error {
		if !g.next.known() {
			if _, err := g.look(ctx, 0); err != nil {
				return err
			}
		}
		for g.head() == seen {
			begun := time.Now()
			var err error
			if bound := time.Until(deadline); g.hits >= trusted && bound > 0 {
				err = g.trust(ctx, bound)
			} else {
				_, err = g.look(ctx, bound)
			}
			if err != nil || !time.Now().Before(deadline) {
				return err
			}
			if g.head() == seen {
				g.rest(begun, deadline)
			}
		}
		g.floor.Reset()
		return nil
	})
	if err != nil {
		return seen, err
	}
	return g.head(), nil
}

// Close implements [Waiter]: it closes the session, and leaves no wait behind on the
// server.
func (g *GTID) Close() error {
	g.once.Do(func() {
		close(g.closed)
		deadline := time.Now().Add(interrupting)
		for wait := time.Duration(0); !g.ended(wait) && time.Now().Before(deadline); {
			_ = g.db.interrupt(g.session)
			wait = 10 * time.Millisecond // then once more: it may have come before its statement
		}
		g.err = g.session.Close()
	})
	return g.err
}

// ended waits until no statement is under way; none begins any more.
func (g *GTID) ended(most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case g.turn <- struct{}{}:
		return true
	default:
	}
	select {
	case g.turn <- struct{}{}:
		return true
	case <-timer.C:
		return false
	}
}

// within runs f with a context that does not end, since the driver would cut the
// connection and leave the wait to the server; the end of ctx closes the waiter.
func (g *GTID) within(ctx context.Context, f func(ctx context.Context) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !g.session.Capabilities().GTID {
		return fmt.Errorf("notify: %w", ErrNoGTID)
	}
	stop := context.AfterFunc(ctx, func() { _ = g.Close() })
	err := f(context.WithoutCancel(ctx))
	if !stop() {
		_ = g.Close() // returns when the one under way has
		return context.Cause(ctx)
	}
	select {
	case <-g.closed:
		return errClosed
	default:
		return err
	}
}

const untilCommit = "WAIT_FOR_EXECUTED_GTID_SET(?, ?)"

// What became of a wait.
const (
	commitCame = 0 // 1: none came in time
	noWait     = 2 // the head was another one
)

// look waits for at most bound, if the head is still what is known, until the next
// transaction commits, and reads the head and what was executed, all in one round
// trip. It tells whether anything was committed since the last look. The first one
// does not wait.
func (g *GTID) look(ctx context.Context, bound time.Duration) (committed bool, err error) {
	if g.carry.Piggyback != nil {
		_ = g.carry.Result(nil)
	}
	var ended sql.NullInt64
	var mode, executed string
	var value sql.Null[uint64]
	query := "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed, (" + g.source.query + ")"
	args := g.source.args
	results := [][]any{{&mode, &executed, &value}}
	bound = g.longest(bound)
	waits := g.next.known() && bound > 0 // 0 would be for ever
	if waits {
		moved, movedArgs := g.source.moved(g.known)
		ask := "SELECT " + moved + " INTO @mqnotify_moved; "
		wait := "SELECT IF(@mqnotify_moved, 2, " + untilCommit + "); "
		if g.source.still {
			ask, wait, movedArgs = "", "SELECT "+untilCommit+"; ", nil
		}
		// Statements of their own: one alone would keep the table, and its view of it, for the whole wait. No SET:
		// it would read with a lock, and wait for the transaction whose row is the last.
		query = ask + wait + query
		args = slices.Concat(movedArgs, []any{g.next.gtid(), bound.Seconds()}, args)
		results = append([][]any{{&ended}}, results...)
	}
	err = g.ask(ctx, bound, func(ctx context.Context, conn *sqlx.Conn) error {
		packet, args, carried := query, args, Piggyback(nil)
		if waits { // else the caller looks for himself
			var err error
			if packet, args, carried, err = g.carry.with(ctx, conn, query, args); err != nil {
				return err
			}
		}
		if err := g.queryAll(ctx, conn, results, carried, packet, args...); err != nil {
			return err
		}
		return g.source.taken(ctx, conn, value.Valid)
	})
	if err != nil {
		return false, err
	}
	if mode != "ON" {
		return false, fmt.Errorf("notify: %w: gtid_mode is %s", ErrNoGTID, mode)
	}
	now := Head{value.V, value.Valid}
	moved := g.source.changed(now, g.known)
	g.known, g.blind = now, false
	switch {
	case moved:
		g.told = changes.Add(1)
		if waits && g.source.take == "" { // a row must be taken, which is a look
			g.hits++
		}
	case waits && ended.Int64 == commitCame:
		g.hits = 0
	}
	return g.next.see(executed)
}

// trust waits for at most bound until the next transaction commits, and tells of it
// without a look. It looked before the wait: whether the last one that it told of
// was for the topic, or, if that is known, whether the head is still the same.
func (g *GTID) trust(ctx context.Context, bound time.Duration) error {
	var value sql.Null[uint64]
	var ended sql.NullInt64
	bound = g.longest(bound)
	query := "SELECT (" + g.source.query + ") INTO @mqnotify_head; " + // no SET, which would read with a lock
		"SELECT @mqnotify_head, IF(? OR @mqnotify_head <=> ?, " + untilCommit + ", 2)"
	args := append(slices.Clone(g.source.args), g.blind, g.known.argument(), g.next.gtid(), bound.Seconds())
	err := g.ask(ctx, bound, func(ctx context.Context, conn *sqlx.Conn) error {
		packet, args, carried, err := g.carry.with(ctx, conn, query, args)
		if err != nil {
			return err
		}
		return g.queryAll(ctx, conn, [][]any{{&value, &ended}}, carried, packet, args...)
	})
	if err != nil {
		return err
	}
	before := Head{value.V, value.Valid}
	if g.blind && before == g.known {
		g.hits = 0 // the last one was for nothing
	}
	if ended.Int64 != noWait {
		g.known, g.blind = before, false
	}
	if ended.Int64 == commitCame {
		g.next.came()
		if g.hits > 0 {
			g.told = changes.Add(1)
			g.blind = true
			return nil
		}
	}
	_, err = g.look(ctx, 0)
	return err
}

// longest is how much of bound to wait at once.
func (g *GTID) longest(bound time.Duration) time.Duration {
	if g.next.sure {
		return min(bound, gtidWait)
	}
	return min(bound, gtidTrial)
}

// ask is Session.ask for a wait of at most bound, unless the waiter was closed.
func (g *GTID) ask(ctx context.Context, bound time.Duration, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-g.closed:
	}
	select {
	case <-g.closed:
		return errClosed
	default:
	}
	err := g.session.ask(ctx, bound+answer, f)
	if server.Is(err, server.ErrGTIDModeOff) {
		return fmt.Errorf("notify: %w: %w", ErrNoGTID, err)
	}
	if err != nil {
		return fmt.Errorf("notify: wait for a commit: %w", err)
	}
	return nil
}

// rest keeps wakes that were for nothing apart, those of a busy server. It counts from
// when the last one was asked for, and so costs nothing where commits are rare.
func (g *GTID) rest(begun, deadline time.Time) {
	passed := time.Since(begun)
	if passed >= g.floor.Max {
		g.floor.Reset()
		return
	}
	timer := time.NewTimer(min(g.floor.NextBackOff()-passed, time.Until(deadline)))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-g.closed:
	}
}

// queryAll runs a packet of statements and scans one row of each result; what is
// beyond them is the piggyback's.
func (g *GTID) queryAll(ctx context.Context, conn *sqlx.Conn, results [][]any, carried Piggyback, query string, args ...any) error {
	rows, err := conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for i, into := range results {
		if i > 0 && !rows.NextResultSet() {
			return cmp.Or(rows.Err(), errNoResult)
		}
		if err := scanResult(rows, into...); err != nil {
			return err
		}
	}
	if carried != nil {
		return g.carry.deliver(rows, carried)
	}
	rows.NextResultSet() // meets an error after the last one
	return rows.Err()
}
