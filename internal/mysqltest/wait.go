package mysqltest

import (
	"testing"
	"time"
)

// soon is how long a test waits for what must come: less than any wait that ends by itself and would
// hide that nothing came.
const soon = 40 * time.Second

// later is how long Eventually waits. Many readers of one server's INNODB_TRX hold each other up for longer than soon.
const later = 2 * time.Minute

// Await fails the test when c is not closed in time.
func Await(tb testing.TB, c <-chan struct{}, what string) {
	tb.Helper()
	select {
	case <-c:
	case <-time.After(soon):
		tb.Fatalf("%s: not after %v", what, soon)
	}
}

// Result runs f in a goroutine, and returns a channel that gets its result.
func Result[T any](f func() T) <-chan T {
	c := make(chan T, 1)
	go func() { c <- f() }()
	return c
}

// Receive returns the next value of c. The test fails when none comes in time.
func Receive[T any](tb testing.TB, c <-chan T) (v T) {
	tb.Helper()
	select {
	case v = <-c:
	case <-time.After(soon):
		tb.Fatalf("nothing came in %v", soon)
	}
	return v
}

// Eventually asks again after often; later more seldom, so that the questions of many tests that wait do not keep
// the machine busy: after a tenth of the time that it has waited, but at least after seldom.
const (
	often  = 5 * time.Millisecond
	seldom = 50 * time.Millisecond
)

// Eventually waits until the condition holds, and fails the test with what it says when that takes too long.
// It asks on the test's own goroutine, so that the condition may fail the test as well.
func Eventually(tb testing.TB, what string, condition func() bool) {
	tb.Helper()
	for begun := time.Now(); !condition(); {
		waited := time.Since(begun)
		if waited > later {
			tb.Fatalf("not after %v: %s", later, what)
		}
		select {
		case <-time.After(min(max(often, waited/10), seldom)):
		case <-tb.Context().Done():
			tb.Fatalf("the test has ended before: %s", what)
		}
	}
}

// Window lets the time pass in which a test counts or measures something. To wait for something to happen, use
// [Eventually].
func Window(tb testing.TB, d time.Duration) {
	tb.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-tb.Context().Done():
	}
}
