package core

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// Waiter ends a wait early when a topic may have new rows. It does not read the rows: a
// hint may come without a new row, or fail to come, so the caller reads the rows after
// every Wait, and gives every Wait a bound.
//
// An implementation sees to it that
//   - a change of the head that comes after the Head or Wait which returned seen
//     ends the Wait for seen, at the latest after bound;
//   - Wait returns soon when ctx ends, with its cause;
//   - Close may be called twice and before a Wait, ends a Wait with an error, and
//     leaves no lock, no goroutine and no session of the waiter's behind;
//   - after an error, the context's included, the waiter may be of no more use:
//     close it and make another.
//
// A waiter serves one goroutine at a time; Close may come from another.
type Waiter interface {
	// Head returns the topic's head now. Read it before the rows: a change between
	// the two reads ends the next Wait at once.
	Head(ctx context.Context) (Head, error)
	// Wait returns when the head may be another than seen, or after bound, with
	// the head that it saw last: the seen of the next Wait.
	Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error)
	Close() error
}

// Head is a topic's state as a waiter sees it: its largest id, or its flag's
// counter. Only equality means anything.
type Head struct {
	value uint64
	any   bool
}

// Value is the largest id or the counter, false when there is none yet.
func (h Head) Value() (uint64, bool) { return h.value, h.any }

// argument is the head as the server's expression of it would be.
func (h Head) argument() sql.Null[uint64] { return sql.Null[uint64]{V: h.value, Valid: h.any} }

// Source is where a waiter sees a topic's head.
type Source struct {
	query string
	args  []any
	take  string // deletes what was seen

	table, commitWait string         // what waits for the commit of the table's next row
	events            waiting.Events // the changes of the table that move the head
}

// LargestID is the head of a table whose key leads an index: as cheap as a flag,
// and free for the writers. A row that commits late, with a lower id, does not
// move it.
func LargestID(table, key string) Source {
	name := table
	key, table = ident.Quote(key), ident.Quote(table)
	largest := "SELECT MAX(" + key + ") FROM " + table + " WHERE " + key
	return Source{
		// The condition costs nothing, and a signed key may be below 0.
		query: largest + " >= 0",
		table: name, commitWait: "SELECT " + key + " FROM " + table + " WHERE " + key + " = (" + largest + " > ?) LOCK IN SHARE MODE",
	}
}

// FlagCounter is the counter of the topic's one-row flag, for tables without such
// a key and for changes that are no inserts.
func FlagCounter(topic string) Source {
	return Source{
		query: "SELECT (SELECT counter FROM " + schema.FlagTable + " WHERE topic = ?)", args: []any{topic},
		table: schema.FlagTable, events: waiting.Insert | waiting.Update,
	}
}

// Query is a head of another kind: the one number that the query selects, or NULL. It is run often, and should read a row
// or two of an index.
func Query(query string, args ...any) Source { return Source{query: query, args: args} }

// Of is the source for an Auto: it is polled after these changes of the table.
func (s Source) Of(table string, events waiting.Events) Source {
	s.table, s.events = table, events
	return s
}

// FlagRow is the flag's other published form: a row that the one reader deletes
// when it has seen it.
func FlagRow(topic string) Source {
	source := FlagCounter(topic)
	source.take = "DELETE FROM " + schema.FlagTable + " WHERE topic = ?"
	return source
}

// read reads the head, and takes the row of a FlagRow away, so that the next
// change is seen as one again.
func (s Source) read(ctx context.Context, session *Session) (Head, error) {
	var head sql.Null[uint64]
	err := session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := conn.QueryRowxContext(ctx, s.query, s.args...).Scan(&head); err != nil {
			return err
		}
		return s.taken(ctx, conn, head.Valid)
	})
	if err != nil {
		return Head{}, fmt.Errorf("notify: read the head: %w", err)
	}
	return Head{head.V, head.Valid}, nil
}

// taken takes the row of a FlagRow away when one was seen.
func (s Source) taken(ctx context.Context, conn *sqlx.Conn, seen bool) error {
	if s.take == "" || !seen {
		return nil
	}
	_, err := conn.ExecContext(ctx, s.take, s.args...)
	if server.Retryable(err) {
		return nil // a writer's trigger found the row: it stays until that one commits
	}
	return err
}

// changed reports whether head ends a wait for seen: a row to delete always does.
func (s Source) changed(head, seen Head) bool {
	if s.take != "" {
		return head.any
	}
	return head != seen
}

// Pause waits for d or until ctx ends.
func Pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// sleep waits as long as the policy says, for most at most, or until ctx ends, the
// session is lost, or the waiter is closed. A policy that gives up (backoff.Stop) begins again after
// most: a waiter neither spins nor stops.
func sleep(ctx context.Context, session *Session, closed <-chan struct{}, waits backoff.BackOff, most time.Duration) error {
	wait := waits.NextBackOff()
	if wait == backoff.Stop {
		waits.Reset()
		wait = most
	}
	timer := time.NewTimer(min(wait, most))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-session.Lost():
		return session.Err()
	case <-closed:
		return errClosed
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
