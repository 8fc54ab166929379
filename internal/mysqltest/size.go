package mysqltest

import (
	"os"
	"slices"
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

// Some returns the cases that a test has to run: with -short a third of them, at random (see [Random]), and otherwise all.
func Some[T any](tb testing.TB, cases []T) []T {
	tb.Helper()
	if !testing.Short() || Long() {
		return cases
	}
	cases = slices.Clone(cases)
	Random(tb).Shuffle(len(cases), func(i, j int) { cases[i], cases[j] = cases[j], cases[i] })
	return cases[:(len(cases)+2)/3]
}
