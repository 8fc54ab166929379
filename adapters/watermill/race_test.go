//go:build race

package watermill_test

// racing leaves TestReconnect out: Watermill's test reads what a goroutine of its own
// still writes. ./test runs it without -race.
const racing = true
