package mysqltest

import (
	"os"
	"testing"
)

// envAgain is set if this run of the tests follows another one on other servers: `./test` runs them with -race on
// one server, and then without it on the others.
const envAgain = "MQNOTIFY_TEST_AGAIN"

// Again reports whether the tests have run before, on another server. Code that does not depend on the database server need not
// be tested again.
func Again() bool { return os.Getenv(envAgain) != "" }

// Once is for tests that use no database server: it makes the test parallel, and skips it if it has run before.
func Once(t *testing.T) {
	t.Helper()
	if Again() {
		t.Skip("uses no database server, and has run before, with -race")
	}
	t.Parallel()
}
