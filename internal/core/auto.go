package core

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/waiting"
)

// AutoOptions are the settings of an Auto.
type AutoOptions struct {
	// Logger gets a line when the mode of waiting is known, and when it changes. nil means slog.Default().
	Logger *slog.Logger
	// Slow means that the source is a query that may be slow. It then shares no session with faster sources.
	Slow bool
}

// Auto is the recommended Waiter. A wake trigger of the table, or a call of mqnotify_wake, ends its Wait at once. If no
// trigger works, it follows the server's GTIDs and polls with waits from 10 ms to 1 s.
//
// All Autos of a DB share a few sessions, however many topics they wait for. Safe for concurrent use.
type Auto struct {
	*waiting.Listener
	log *slog.Logger

	mu   sync.Mutex
	said string
}

// NewAuto returns a waiter for the source, which must not be a FlagRow. It connects in the background. The caller closes it.
func NewAuto(db *DB, source Source, options AutoOptions) *Auto {
	w := db.waiting
	if options.Slow {
		w = db.slow
	}
	if options.Logger == nil {
		options.Logger = slog.Default()
	}
	return &Auto{log: options.Logger, Listener: w.Listen(waiting.Topic{
		Table: source.table, Head: source.query, Args: source.args, CommitWait: source.commitWait, Events: source.events,
	})}
}

// Head implements [Waiter].
func (a *Auto) Head(ctx context.Context) (Head, error) {
	head, err := a.Listener.Head(ctx)
	if err == nil {
		err = a.Ready(ctx)
		if mode, _ := a.Mode(); mode != "" {
			err = nil
		}
	}
	a.say(ctx)
	return head, err
}

// Wait implements [Waiter].
func (a *Auto) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	for end := time.Now().Add(bound); ; {
		left := time.Until(end)
		head, err := a.Listener.Wait(ctx, seen, min(left, sayAfter))
		a.say(ctx)
		if err != nil || head != seen || left <= sayAfter {
			return head, err
		}
	}
}

// sayAfter is the longest delay before a new mode is logged.
const sayAfter = 5 * time.Second

// say logs the mode when it has changed.
func (a *Auto) say(ctx context.Context) {
	mode, why := a.Mode()
	a.mu.Lock()
	defer a.mu.Unlock()
	if mode == "" || mode == a.said {
		return
	}
	a.said = mode
	attributes := []any{"mode", mode}
	if why != "" {
		attributes = append(attributes, "why", why)
	}
	a.log.InfoContext(ctx, "waiting", attributes...)
}
