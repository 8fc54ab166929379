//go:build race

package watermill_test

// racing excludes TestReconnect, because Watermill's test has a data race of its own. ./test runs it without -race.
const racing = true
