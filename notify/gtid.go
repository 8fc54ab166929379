package notify

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"sync"
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
// with gtid_mode=ON and a binary log; elsewhere Head and Wait return ErrNoGTID.
//
// It waits for the transaction that comes next, and knows its number from before it
// looked at the head. A change that this look did not see became visible after it,
// and servers make a change visible before they count its transaction as executed.
// So it is none of those that were executed before the look: its number is the one
// waited for, or a later one, which the server counts after the former.
//
// That holds for what the server itself numbers, one after the other. Commits that
// bear other numbers end a wait late, at the latest after its bound: of a second
// origin, on a server where several grow at once (another primary of a group, tagged
// GTIDs, a replica that is written to); out of order (binlog_order_commits=OFF, a
// replica with replica_preserve_commit_order=OFF); without a number
// (sql_log_bin=0). On a replica the first commit that it takes over shows the
// waiter, within a second, what to wait for.
type GTID struct {
	db      *DB
	session *Session
	source  Source
	next    gtidNext
	floor   Fibonacci // the least time between two wakes that were for nothing

	turn   chan struct{} // one slot: who has it may use the session
	once   sync.Once
	closed chan struct{}
	err    error // of closing
}

var _ Waiter = (*GTID)(nil)

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

// Head implements [Waiter].
func (g *GTID) Head(ctx context.Context) (Head, error) {
	return g.within(ctx, func(ctx context.Context) (Head, error) {
		head, _, err := g.look(ctx, Head{}, 0)
		return head, err
	})
}

// Wait implements [Waiter].
func (g *GTID) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	deadline := time.Now().Add(bound)
	head, err := g.within(ctx, func(ctx context.Context) (Head, error) {
		for {
			begun := time.Now()
			head, _, err := g.look(ctx, seen, time.Until(deadline))
			switch {
			case err != nil:
				return seen, err
			case g.source.changed(head, seen):
				g.floor.Reset()
				return head, nil
			case !time.Now().Before(deadline):
				return head, nil
			}
			g.rest(begun, deadline)
		}
	})
	if err != nil {
		return seen, err
	}
	return head, nil
}

// Close implements [Waiter]: it closes the session, and leaves no wait behind on the
// server.
func (g *GTID) Close() error {
	g.once.Do(func() {
		close(g.closed)
		deadline := time.Now().Add(interrupting)
		for wait := time.Duration(0); !g.ended(wait) && time.Now().Before(deadline); {
			g.db.interrupt(g.session)
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
func (g *GTID) within(ctx context.Context, f func(ctx context.Context) (Head, error)) (Head, error) {
	if ctx.Err() != nil {
		return Head{}, context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, func() { _ = g.Close() })
	head, err := f(context.WithoutCancel(ctx))
	if !stop() {
		_ = g.Close() // returns when the one under way has
		return Head{}, context.Cause(ctx)
	}
	select {
	case <-g.closed:
		return Head{}, errClosed
	default:
		return head, err
	}
}

// look waits for at most bound, if the head is still what was seen, until the next
// transaction commits, and reads the head then, all in one round trip. It tells
// whether anything was committed since the last look. The first one does not wait.
func (g *GTID) look(ctx context.Context, seen Head, bound time.Duration) (head Head, committed bool, err error) {
	if !g.session.Capabilities().GTID {
		return Head{}, false, fmt.Errorf("notify: %w", ErrNoGTID)
	}
	select {
	case g.turn <- struct{}{}:
		defer func() { <-g.turn }()
	case <-g.closed:
	}
	select {
	case <-g.closed:
		return Head{}, false, errClosed
	default:
	}
	bound = min(bound, gtidWait)
	if !g.next.sure {
		bound = min(bound, gtidTrial)
	}
	var ended sql.NullInt64
	var mode, executed string
	var value sql.Null[uint64]
	query := "SELECT @@GLOBAL.gtid_mode, @@GLOBAL.gtid_executed, (" + g.source.query + ")"
	args := g.source.args
	results := [][]any{{&mode, &executed, &value}}
	if g.next.gtid != "" && bound > 0 { // 0 would be for ever
		moved, seenArgs := g.source.moved(seen)
		// Statements of their own: one alone would keep the table, and its view of it, for the whole wait.
		query = "SET @mqnotify_moved = " + moved +
			"; SELECT IF(@mqnotify_moved, 2, WAIT_FOR_EXECUTED_GTID_SET(?, ?)); " + query
		args = slices.Concat(seenArgs, []any{g.next.gtid, bound.Seconds()}, args)
		results = append([][]any{{&ended}}, results...)
	}
	err = g.session.ask(ctx, bound+answer, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := queryAll(ctx, conn, results, query, args...); err != nil {
			return err
		}
		return g.source.taken(ctx, conn, value.Valid)
	})
	switch {
	case server.Is(err, server.ErrGTIDModeOff):
		return Head{}, false, fmt.Errorf("notify: %w: %w", ErrNoGTID, err)
	case err != nil:
		return Head{}, false, fmt.Errorf("notify: wait for a commit: %w", err)
	case mode != "ON":
		return Head{}, false, fmt.Errorf("notify: %w: gtid_mode is %s", ErrNoGTID, mode)
	}
	committed, err = g.next.see(executed)
	return Head{value.V, value.Valid}, committed, err
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

// queryAll runs a packet of statements and scans one row of each result.
func queryAll(ctx context.Context, conn *sqlx.Conn, results [][]any, query string, args ...any) error {
	rows, err := conn.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for i, into := range results {
		if i > 0 && !rows.NextResultSet() || !rows.Next() {
			return cmp.Or(rows.Err(), errNoResult)
		}
		if err := rows.Scan(into...); err != nil {
			return err
		}
	}
	rows.NextResultSet() // meets an error after the last one
	return rows.Err()
}
