package mysqltest

import (
	"os"
	"testing"
)

// envAgain says that this run of the tests follows another one on other servers: `./test` runs them with -race on
// one server, and then without it on the others.
const envAgain = "MQNOTIFY_TEST_AGAIN"

// Again reports whether the tests have run before, on another server. What does not depend on the database server
// need not be tested again.
func Again() bool { return os.Getenv(envAgain) != "" }

// Once makes a test that uses no database server a parallel one, which is left out when it has run before.
func Once(t *testing.T) {
	t.Helper()
	if Again() {
		t.Skip("uses no database server, and has run before, with -race")
	}
	t.Parallel()
}
