package notify

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/mqnotify/mqnotify/internal/waiting"
)

// hasWakeTrigger reports whether the table has a trigger that wakes its listeners at every commit of a row, as
// "mqnotify wake install" makes it. It is false, too, while the server is read-only.
func (db *DB) hasWakeTrigger(ctx context.Context, table string) (bool, error) {
	var tables []string
	err := db.pool.SelectContext(ctx, &tables, "CALL mqnotify_wake_tables()")
	if waiting.NoRoutine(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("notify: read the wake triggers: %w", err)
	}
	return slices.Contains(tables, table), nil
}

// woken is the waiter for a table with a wake trigger. All of a DB share a few sessions.
type woken struct{ listener *waiting.Listener }

// newWoken returns when every commit of a row will end the Wait that follows.
func newWoken(ctx context.Context, db *DB, source Source) (Waiter, error) {
	w := &woken{db.waiting.Listen(waiting.Topic{
		Table: source.table, Head: source.query, Args: source.args, CommitWait: source.commitWait,
	})}
	if err := w.listener.Ready(ctx); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("notify: %w", err)
	}
	return w, nil
}

// Head implements [Waiter].
func (w *woken) Head(ctx context.Context) (Head, error) {
	head, err := w.listener.Head(ctx)
	return Head{head.V, head.Valid}, err
}

// Wait implements [Waiter].
func (w *woken) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	head, err := w.listener.Wait(ctx, waiting.Head{Null: seen.argument()}, bound)
	return Head{head.V, head.Valid}, err
}

// Carry implements [Carrier].
func (w *woken) Carry(p Piggyback) {
	if carrier, ok := p.(waiting.Carrier); ok {
		w.listener.Carry(carrier)
	}
}

// Close implements [Waiter].
func (w *woken) Close() error { return w.listener.Close() }
