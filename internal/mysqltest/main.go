package mysqltest

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Main runs the package's tests, stops every server that they started, and fails when a goroutine is
// left after that. It is all a TestMain does, and does not return. The options are goleak's, for
// goroutines that a dependency leaves behind.
func Main(m *testing.M, options ...goleak.Option) {
	code := m.Run()
	if err := home.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	// After a failed test a leak is a consequence, and its report would bury the cause.
	if code == 0 {
		if err := goleak.Find(options...); err != nil {
			fmt.Fprintf(os.Stderr, "mysqltest: goroutines are left after the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}
