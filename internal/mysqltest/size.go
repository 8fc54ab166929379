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
