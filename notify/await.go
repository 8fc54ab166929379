package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

// Await blocks until the query returns rows, and returns them, each in a T, which
// is a struct with db tags or the type of a single column (see sqlx.Select).
//
// It asks again whenever the topic's gate rings: when rows are inserted into the
// topic's table, by a producer or by anybody, and when somebody notifies the topic,
// as who changes the condition in another way does after his commit. Beside that
// it asks each 10 s; where there is no gate (ErrNoGate) it polls, from 10 ms to 1 s.
//
// The query runs on the DB's pool, outside a transaction, as often as needed. It
// ends with ctx, with its cause, or with an error of the query; a lost connection is
// no end.
func Await[T any](ctx context.Context, db *DB, topic, query string, args ...any) ([]T, error) {
	gate := NewGate(db, topic, GateOptions{})
	defer func() { _ = gate.Close() }()
	polls := &Fibonacci{Jitter: 0.1}
	for gated := true; ; {
		head, err := gate.Head(ctx)
		if errors.Is(err, ErrNoGate) && gated {
			slog.InfoContext(ctx, "polls for a condition", "topic", topic, "why", err)
			gated = false
		}
		var rows []T
		switch err := db.pool.SelectContext(ctx, &rows, query, args...); {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case server.ConnectionLost(err) || server.Retryable(err):
			pause(ctx, polls.NextBackOff())
			continue
		case err != nil:
			return nil, fmt.Errorf("notify: await a condition: %w", err)
		case len(rows) > 0:
			return rows, nil
		}
		if err != nil {
			pause(ctx, polls.NextBackOff())
			continue
		}
		_, _ = gate.Wait(ctx, head, awaitBound) // whatever it says, the query tells
	}
}

// awaitBound is how often Await asks when nobody wakes it.
const awaitBound = 10 * time.Second
