package guard

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

var retried atomic.Uint64

// again runs f until it succeeds, or fails with an error that another attempt would repeat. f may run again after it has succeeded,
// because the answer may have been lost, and must tolerate that.
func again(ctx context.Context, f func() error) error {
	return repeat(ctx, func(err error) bool {
		return server.Retryable(err) || server.ConnectionLost(err)
	}, f)
}

// errAfter marks an error of a ctx that ended after an attempt had failed for another reason.
var errAfter = errors.New("after")

// repeat is server.Again with a counter of attempts. When ctx has ended, the error is its cause, with the last
// error that ctx did not cause, if there was one.
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
	case err == nil || ctx.Err() == nil || errors.Is(err, notify.ErrUnknown): // a commit may have happened
		return err
	case last != nil:
		return fmt.Errorf("%w, %w: %w", context.Cause(ctx), errAfter, last)
	}
	return context.Cause(ctx)
}

// newTaker returns the mark of one attempt to take something. After a lost connection the mark shows whether the attempt has
// succeeded. It is text, because MySQL shows no account the list of
// sessions while the statement of one of them contains bytes that are not text.
func newTaker() string { return rand.Text() }
