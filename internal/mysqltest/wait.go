package mysqltest

import (
	"testing"
	"time"
)

// soon is how long a test waits for an event. It is shorter than every wait that ends by itself, because the end of such a wait
// would hide that the event did not come.
const soon = 40 * time.Second

// later is how long Eventually waits. It is longer than soon because many readers of one server's INNODB_TRX delay each other
// for longer than that.
const later = 2 * time.Minute

// Await waits until c is closed or has a value. It fails the test if that takes too long.
func Await(tb testing.TB, c <-chan struct{}, what string) {
	tb.Helper()
	select {
	case <-c:
	case <-time.After(soon):
		tb.Fatalf("not after %v: %s", soon, what)
	}
}

// Result runs f in a goroutine, and returns a channel that gets its result.
func Result[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// Receive returns the next value of c. It fails the test if none comes in time.
func Receive[T any](tb testing.TB, c <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		tb.Fatalf("nothing came in %v", soon)
	}
	return v
}

// A condition is first checked at intervals of often. Later an interval is a tenth of the time since the start, but at most
// seldom, so that many waiting tests do not keep the machine busy.
const (
	often  = 10 * time.Millisecond
	seldom = 100 * time.Millisecond
)

func interval(waited time.Duration) time.Duration { return min(max(often, waited/10), seldom) }

// Eventually waits until the condition holds. If that takes too long, it fails the test with a message that ends with what. It
// calls condition on the test's own goroutine, so that condition may fail the test as well.
func Eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	for begun := time.Now(); !condition(); {
		waited := time.Since(begun)
		if waited > later {
			tb.Fatalf("not after %v: %s", later, what)
		}
		select {
		case <-time.After(interval(waited)):
		case <-tb.Context().Done():
			tb.Fatalf("the test has ended, but not yet: %s", what)
		}
	}
}

// Window waits for d, the time in which a test counts or measures something. To wait for an event, use [Eventually].
func Window(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}
