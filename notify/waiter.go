package notify

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/ident"
	schema "github.com/mqnotify/mqnotify/sql"
)

// Waiter ends a wait early when a topic may have new rows. It knows no rows: a
// hint may come for nothing and may fail to come, so whoever waits reads after
// every Wait, and gives each a bound.
//
// An implementation sees to it that
//   - a change of the head that comes after the Head or Wait which returned seen
//     ends the Wait for seen, at the latest after bound;
//   - Wait returns soon when ctx ends, with its cause;
//   - Close may be called twice and before a Wait, leaves no lock and no session
//     behind, and returns when nothing of the waiter runs any more;
//   - an error other than the context's means that the waiter is of no more use:
//     close it and make another.
//
// A waiter serves one goroutine at a time; Close may come from another.
type Waiter interface {
	// Head is the topic's head now. Read it before the rows: what comes between
	// the two ends the next Wait at once.
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

// Source is where a waiter sees a topic's head.
type Source struct {
	query string
	args  []any
	take  string // deletes what was seen
}

// LargestID is the head of a table whose key leads an index: as cheap as a flag,
// and free for the writers. A row that commits late, with a lower id, does not
// move it.
func LargestID(table, key string) Source {
	return Source{query: "SELECT MAX(" + ident.Quote(key) + ") FROM " + ident.Quote(table)}
}

// FlagCounter is the counter of the topic's one-row flag, for tables without such
// a key and for changes that are no inserts.
func FlagCounter(topic string) Source {
	return Source{query: "SELECT (SELECT counter FROM " + schema.FlagTable + " WHERE topic = ?)", args: []any{topic}}
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
	ctx, cancel := context.WithTimeoutCause(ctx, answer, errNoAnswer)
	defer cancel()
	var head sql.Null[uint64]
	err := session.Do(ctx, func(conn *sqlx.Conn) error {
		if err := conn.QueryRowxContext(ctx, s.query, s.args...).Scan(&head); err != nil {
			return err
		}
		if s.take != "" && head.Valid {
			_, err := conn.ExecContext(ctx, s.take, s.args...)
			return err
		}
		return nil
	})
	if err != nil {
		return Head{}, fmt.Errorf("notify: read the head: %w", err)
	}
	return Head{head.V, head.Valid}, nil
}

// changed tells whether head ends a wait for seen: a row to delete always does.
func (s Source) changed(head, seen Head) bool {
	if s.take != "" {
		return head.any
	}
	return head != seen
}

// sleep waits for d, ctx, or the loss of the session.
func sleep(ctx context.Context, session *Session, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-session.Lost():
		return session.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
