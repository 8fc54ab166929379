package mysqltest

import (
	"os"
	"testing"
)

// envLong chooses the long forms of tests.
const envLong = "MQNOTIFY_LONG"

// Long reports whether tests run in their long form (`./test --long`), which takes hours.
func Long() bool { return os.Getenv(envLong) != "" }

// Size chooses how much a test does: short with -short (`./test --quick`), long in the long form, and otherwise normal.
func Size[T any](short, normal, long T) T {
	switch {
	case Long():
		return long
	case testing.Short():
		return short
	default:
		return normal
	}
}

// NotShort skips a test with -short, because it takes long. It names the tests of the same subject that run in short.
func NotShort(tb testing.TB, others string) {
	tb.Helper()
	if testing.Short() && !Long() {
		tb.Skip("takes long; in short there are " + others)
	}
}

// Many is Size for the number of rounds, and for amounts. With -race it returns short as well, because a few rounds show a race
// and each costs several times as much. The long form stays long.
func Many[T any](short, normal, long T) T {
	if raced && !Long() {
		return short
	}
	return Size(short, normal, long)
}
