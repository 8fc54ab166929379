package server

import (
	"context"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Attempts is how often Again runs its function at most.
const Attempts = 12

// Again runs f until it succeeds, has failed Attempts times, or fails for a reason that
// another attempt does not mend (Retryable, for one). When ctx ends in between, the
// error has its cause and f's last error. mends is asked only before another attempt.
func Again(ctx context.Context, mends func(error) bool, f func() error) error {
	waits := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(5*time.Millisecond),
		backoff.WithMaxInterval(500*time.Millisecond),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(1), // all of the wait: two that met would meet again
		backoff.WithMaxElapsedTime(0),
	)
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || attempt == Attempts || !mends(err) {
			return err
		}
		timer := time.NewTimer(waits.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w, after: %w", context.Cause(ctx), err)
		}
	}
}
