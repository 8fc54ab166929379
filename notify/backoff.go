package notify

import (
	"cmp"
	"math/rand/v2"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Fibonacci is a backoff.BackOff whose waits grow by the Fibonacci numbers, 1, 1, 2, 3, 5 ... times Min, up to Max. They grow
// more slowly than waits that double. Not safe for concurrent use.
type Fibonacci struct {
	// Min is the first wait, and Max the longest; 0 means 10 ms and 1 s.
	Min, Max time.Duration
	// Jitter is the fraction of a wait by which it may be shorter, at random, so that many waiters do not poll at the same
	// time. 0 means none, 1 or more the whole wait.
	Jitter float64

	previous, current time.Duration
}

var _ backoff.BackOff = (*Fibonacci)(nil)

// NextBackOff returns the next wait. It never returns backoff.Stop.
func (f *Fibonacci) NextBackOff() time.Duration {
	least, most := cmp.Or(f.Min, 10*time.Millisecond), cmp.Or(f.Max, time.Second)
	f.previous, f.current = f.current, min(most, max(least, f.previous+f.current))
	return f.current - time.Duration(min(1, f.Jitter)*rand.Float64()*float64(f.current))
}

// Reset makes Min the next wait.
func (f *Fibonacci) Reset() { f.previous, f.current = 0, 0 }

// Exponential returns a backoff.BackOff whose waits double from least to most, each up to a fifth longer or shorter at random. It
// never stops, unlike the library's default of 15 minutes, because a reconnect must not give up.
func Exponential(least, most time.Duration) backoff.BackOff {
	return backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(least),
		backoff.WithMaxInterval(most),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(0.2),
		backoff.WithMaxElapsedTime(0),
	)
}
