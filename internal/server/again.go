package server

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Attempts is the maximum number of times that Again runs its function.
const Attempts = 12

// Again runs f until it succeeds, has failed Attempts times, or fails with an error for which mends
// returns false (Retryable, for example). When ctx ends between two attempts, the
// error wraps its cause and f's last error. Again calls mends only before another attempt.
func Again(ctx context.Context, mends func(error) bool, f func() error) error {
	waits := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(5*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(1), // over the whole wait, or two that met would meet again
		backoff.WithMaxElapsedTime(0),
	)
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || attempt == Attempts || !mends(err) {
			return err
		}
		if ended := Pause(ctx, waits.NextBackOff()); ended != nil {
			return fmt.Errorf("%w, after: %w", ended, err)
		}
	}
}

// Pause waits for d. If ctx ends before, it returns the cause.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Linger returns a context that ends at the time d after ctx, with the cause of ctx. The caller calls release when it no longer needs
// the context.
func Linger(ctx context.Context, d time.Duration) (_ context.Context, release context.CancelFunc) {
	return LingerIn(context.WithoutCancel(ctx), ctx, d)
}

// LingerIn returns a context with the values of parent. It ends with parent, or at the time d after ctx, with the cause of ctx.
func LingerIn(parent, ctx context.Context, d time.Duration) (_ context.Context, release context.CancelFunc) {
	longer, cancel := context.WithCancelCause(parent)
	stop := context.AfterFunc(ctx, func() {
		if Pause(longer, d) == nil {
			cancel(context.Cause(ctx))
		}
	})
	return longer, func() {
		stop()
		cancel(context.Canceled)
	}
}
