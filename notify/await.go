package notify

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/waiting"
)

// awaitBound is the longest wait of Await between two runs of its query.
const awaitBound = 10 * time.Second

// awaitLimit bounds a run of the query of Await. A connection that takes longer counts as lost.
var awaitLimit = 5 * time.Minute

// Await blocks until the query returns rows, and returns them, each in a T. T is a struct with db tags or the type of a
// single column (see sqlx.Select). The topic is the name of the table whose changes can make the query return rows.
//
// If the table has wake triggers for insert, update and delete, Await runs SELECT EXISTS(query) at every change of the table.
// Otherwise it runs it when the server commits (MySQL with GTIDs), when a program calls mqnotify_wake, and at least once a
// second. If EXISTS can't contain the query, Await runs the query itself instead, with waits from 10 ms to 1 s.
//
// The query runs on the DB's pool, outside a transaction, as often as needed. Await returns the cause of ctx when ctx ends, or an
// error of the query. After a lost connection it continues. A run of the query that takes 5 minutes counts as one; after two
// in a row Await returns an error.
func Await[T any](ctx context.Context, db *DB, topic, query string, args ...any) ([]T, error) {
	auto := core.NewAuto(db, core.Query("SELECT EXISTS("+query+"\n)", args...).Of(topic, waiting.Insert|waiting.Update|waiting.Delete),
		core.AutoOptions{Logger: slog.New(slog.DiscardHandler), Slow: true})
	defer func() { _ = auto.Close() }()
	polls := &Fibonacci{Jitter: 0.1}
	late := false
	for {
		head, failed := auto.Head(ctx)
		rows, ended, err := selectWithin[T](ctx, db, query, args)
		switch {
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case ended && late: // the server would go on with each run
			return nil, fmt.Errorf("notify: await a condition: the query takes longer than %v: %w", awaitLimit, err)
		case ended || server.ConnectionLost(err) || server.Full(err) || server.Retryable(err):
			failed = err
		case err != nil:
			return nil, fmt.Errorf("notify: await a condition: %w", err)
		case len(rows) > 0:
			return rows, nil
		}
		late = ended
		// EXISTS found rows that the query did not return: others may come before the next hint.
		if exists, _ := head.Value(); failed != nil || exists > 0 {
			_ = server.Pause(ctx, polls.NextBackOff())
			continue
		}
		polls.Reset()
		_, _ = auto.Wait(ctx, head, awaitBound) // the next run of the query shows whether this failed
	}
}

// selectWithin runs the query. ended reports whether err came after awaitLimit. An attempt to connect that takes longer than the timeout
// of the DSN has an error of the same type.
func selectWithin[T any](ctx context.Context, db *DB, query string, args []any) (rows []T, ended bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, awaitLimit)
	defer cancel()
	err = db.Pool().SelectContext(ctx, &rows, query, args...)
	return rows, err != nil && ctx.Err() != nil, err
}
