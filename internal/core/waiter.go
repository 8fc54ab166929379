package core

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// Waiter ends a wait early when a topic may have new rows. It does not read the rows. A hint may come without a new row, or may not
// come at all, so the caller reads the rows after every Wait, and gives every Wait a bound.
//
// An implementation guarantees that
//   - a change of the head after the Head or Wait that returned seen
//     ends the Wait for seen, at the latest after bound;
//   - Wait returns soon after ctx ends, with its cause;
//   - Close may be called twice and before a Wait, ends a Wait with an error, and
//     leaves no lock, goroutine or session of the waiter behind.
//
// After an error, including the context's, the caller must close the waiter and make another. A waiter serves one goroutine at a
// time; another one may call Close.
type Waiter interface {
	// Head returns the topic's current head. Call it before reading the rows: a change between
	// the two reads ends the next Wait at once.
	Head(ctx context.Context) (Head, error)
	// Wait returns when the head may differ from seen, or after bound. It returns
	// the head that it saw last, which is the seen of the next Wait.
	Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error)
	Close() error
}

// Head is a topic's state as a waiter sees it: its largest id, or its flag's counter, or neither. Heads are only compared for equality.
type Head = waiting.Head

// Source is the query with which a waiter reads a topic's head.
type Source struct {
	query string
	args  []any
	take  string // the statement that deletes the row of a FlagRow

	table, commitWait string         // the table, and the statement that waits for the commit of its next row
	events            waiting.Events // the changes of the table that move the head
}

// LargestID is the head of a table whose key leads an index. It costs as little as a flag to read, and nothing to write. A row that
// commits late, with a lower id, does not move it.
func LargestID(table, key string) Source {
	name := table
	key, table = ident.Quote(key), ident.Quote(table)
	largest := "SELECT MAX(" + key + ") FROM " + table + " WHERE " + key
	return Source{
		// The condition costs nothing, and a signed key may be negative.
		query: largest + " >= 0",
		table: name, commitWait: "SELECT " + key + " FROM " + table + " WHERE " + key + " = (" + largest + " > ?) LOCK IN SHARE MODE",
	}
}

// FlagCounter is the counter of the topic's one-row flag, for tables without such a key and for changes that are not inserts.
func FlagCounter(topic string) Source {
	return Source{
		query: "SELECT (SELECT counter FROM " + schema.FlagTable + " WHERE topic = ?)", args: []any{topic},
		table: schema.FlagTable, events: waiting.Insert | waiting.Update,
	}
}

// Query is a head of another kind: the one number that the query selects, or NULL. It runs often, so it should read only a row
// or two of an index.
func Query(query string, args ...any) Source { return Source{query: query, args: args} }

// Of returns the source with a table for an Auto: these changes of the table may move the head.
func (s Source) Of(table string, events waiting.Events) Source {
	s.table, s.events = table, events
	return s
}

// FlagRow is the flag's other published form: a row that its only reader deletes after it has seen it.
func FlagRow(topic string) Source {
	source := FlagCounter(topic)
	source.take = "DELETE FROM " + schema.FlagTable + " WHERE topic = ?"
	return source
}

// read reads the head, and deletes the row of a FlagRow, so that the next change shows again.
func (s Source) read(ctx context.Context, session *Session) (Head, error) {
	var head Head
	err := session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		if err := conn.QueryRowxContext(ctx, s.query, s.args...).Scan(&head.Null); err != nil {
			return err
		}
		if s.take == "" || !head.Valid {
			return nil
		}
		_, err := conn.ExecContext(ctx, s.take, s.args...)
		if server.Retryable(err) {
			return nil // a writer's trigger has locked the row: it stays until the writer commits
		}
		return err
	})
	if err != nil {
		return Head{}, fmt.Errorf("notify: read the head: %w", err)
	}
	return head, nil
}

// changed reports whether head ends a wait for seen. A row of a FlagRow always does.
func (s Source) changed(head, seen Head) bool {
	if s.take != "" {
		return head.Valid
	}
	return head != seen
}

// sleep waits as long as the policy says, but at most for most. It ends early when ctx ends, the session is lost, or the waiter is
// closed. When a policy returns backoff.Stop, sleep waits for most and resets it, so that a waiter neither spins nor stops.
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
