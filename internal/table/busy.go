package table

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrBusy means that transactions that use the table did not end in time.
var ErrBusy = errors.New("the table is in use")

// Patiently calls try, which runs a statement that waits for the transactions that use the table, until it does not time out.
// When patience has passed, it returns ErrBusy. It pauses between two attempts, so that transactions that wait behind
// the statement continue. It waits for the end of an attempt even if ctx ends, because the server would continue the statement, and
// might create a trigger that the caller does not know of.
func Patiently(ctx context.Context, log *slog.Logger, table string, patience, pause time.Duration, try func(ctx context.Context) error) error {
	for end := time.Now().Add(patience); ctx.Err() == nil; {
		bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		err := try(bounded)
		cancel()
		if !server.Is(err, server.ErrLockWaitTimeout) {
			return err
		}
		if !time.Now().Before(end) {
			return fmt.Errorf("%w: transactions that use %s did not end in %v (mqnotify doctor names those that are old): %w",
				ErrBusy, ident.Quote(table), patience, err)
		}
		log.WarnContext(ctx, "transactions use the table: trying again", "table", table)
		_ = server.Pause(ctx, pause)
	}
	return context.Cause(ctx)
}
