package mysqltest

import (
	"os"
	"testing"
)

// envAgain is set if there is another run of the tests, on another server: `./test` runs them with -race on one server, and then
// without it on the others.
const envAgain = "MQNOTIFY_TEST_AGAIN"

// Again reports whether the tests also run with -race, on another server. Code that does not depend on the database server need
// not be tested again.
func Again() bool { return os.Getenv(envAgain) != "" }

// Once is for tests that use no database server: it makes the test parallel, and skips it if it also runs with -race.
func Once(t *testing.T) {
	t.Helper()
	if Again() {
		t.Skip("uses no database server, and also runs with -race")
	}
	t.Parallel()
}
