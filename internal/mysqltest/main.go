package mysqltest

import (
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Main runs the package's tests, stops every server that they started, and fails if a goroutine is left then. It does not
// return. A TestMain needs no other call. The options are goleak's, for goroutines that a dependency leaves behind.
func Main(m *testing.M, options ...goleak.Option) {
	Parallel(perCore * runtime.NumCPU())
	code := m.Run()
	if err := home.close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	// A leak after a failed test is a consequence of the failure, and its report would bury the cause.
	if code == 0 {
		// Toxiproxy leaves this goroutine behind when a connection ends during a thaw.
		options = append(options, goleak.IgnoreAnyFunction("github.com/Shopify/toxiproxy/v2/toxics.(*NoopToxic).Pipe"))
		if err := leaks(options...); err != nil {
			fmt.Fprintf(os.Stderr, "mysqltest: goroutines are left after the tests: %v\n", err)
			code = 1
		}
	}
	os.Exit(code)
}

// leaks waits until only the caller's goroutine and those of the options are left. If that takes too long, its error names the
// others. goleak itself waits for only half a second.
func leaks(options ...goleak.Option) error {
	for late := time.Now().Add(settleTime); ; {
		if err := goleak.Find(options...); err == nil || time.Now().After(late) {
			return err
		}
	}
}

// AsProcess is for tests that start the test binary again, as a process that they kill. If the environment variable is set,
// AsProcess calls main with its value and ends the process. A TestMain calls it before [Main].
func AsProcess(variable string, main func(told string) error) {
	told := os.Getenv(variable)
	if told == "" {
		return
	}
	if err := main(told); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// perCore is how many tests of a package run at the same time for each core, unless -parallel is given. It is more than 1
// because most tests wait for a server or for a time. It also limits how many servers run.
const perCore = 4
