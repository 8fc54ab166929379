package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
)

var retried atomic.Uint64

// again runs f until it succeeds, or fails for a reason that another attempt does not
// mend. f must bear to be run again after it had succeeded without anybody knowing.
func again(ctx context.Context, f func() error) error {
	return repeat(ctx, func(err error) bool {
		return server.Retryable(err) || server.ConnectionLost(err)
	}, f)
}

// errAfter is in the error of a ctx that ended after an attempt had failed by itself.
var errAfter = errors.New("after")

// repeat is server.Again, but counted. When ctx has ended the error is its cause, with the last
// error that it had no part in, if there was one.
func repeat(ctx context.Context, mends func(error) bool, f func() error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var last error
	err := server.Again(ctx, func(err error) bool {
		again := ctx.Err() == nil && mends(err)
		if again {
			last = err
			retried.Add(1)
		}
		return again
	}, f)
	switch {
	case err == nil || ctx.Err() == nil:
		return err
	case last != nil:
		return fmt.Errorf("%w, %w: %w", context.Cause(ctx), errAfter, last)
	}
	return context.Cause(ctx)
}

// pause waits, unless ctx ends: then it returns the cause.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// newTaker is the mark of one attempt to get something: it tells, after a lost
// connection, whether the attempt had succeeded. It is text: MySQL shows no list of
// its sessions to anybody while the statement of one has bytes in it that are none.
func newTaker() string { return rand.Text() }
