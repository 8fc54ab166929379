package mysqltest

import (
	"os"
	"path/filepath"
	"testing"
)

// Interpreter returns the path of php, python3 or node, with its MySQL driver: from the folder that MQNOTIFY_TEST_INTERPRETERS
// names, or from the one that scripts/interpreters has made. It skips the test if the interpreter is missing, and with -short.
func Interpreter(tb testing.TB, name string) string {
	tb.Helper()
	if testing.Short() {
		tb.Skip("the short form runs no other languages")
	}
	folder := os.Getenv("MQNOTIFY_TEST_INTERPRETERS")
	if folder == "" {
		if cache, err := cacheFolder(); err == nil {
			folder = filepath.Join(cache, "interpreters", "bin")
		}
	}
	path := filepath.Join(folder, name)
	if _, err := os.Stat(path); err != nil {
		tb.Skipf("needs %s: scripts/interpreters gets it", name)
	}
	return path
}
