package mysqltest

import (
	"os"
	"testing"
)

// envLong chooses the long forms of tests.
const envLong = "MQNOTIFY_LONG"

// Long reports whether tests run in their long form (`./test --long`), which takes hours.
func Long() bool { return os.Getenv(envLong) != "" }

// Size chooses how much a test does: short with -short (`./test --quick`), long in the long form, otherwise
// normal.
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

// Many is Size for how often a test does something, and with how much. With -race it is short as well: races show in
// few rounds, and each costs several times as much.
func Many[T any](short, normal, long T) T {
	if raced && !Long() {
		return short
	}
	return Size(short, normal, long)
}
