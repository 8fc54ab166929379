package mysqltest

import (
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// With envSample, a text, half of the tests that use a server are skipped: another half for another text. envWhole has the folders, with
// white space between them, whose tests all run. `./test --quick` sets both.
const (
	envSample = "MQNOTIFY_TEST_SAMPLE"
	envWhole  = "MQNOTIFY_TEST_WHOLE"
)

// sample skips the test, or the subtest, if it is not in the sample.
func sample(tb testing.TB) {
	tb.Helper()
	chosen := os.Getenv(envSample)
	if chosen == "" {
		return
	}
	folder, err := os.Getwd() // of the package
	if err != nil {
		tb.Fatal(err)
	}
	whole := strings.Fields(os.Getenv(envWhole))
	if slices.ContainsFunc(whole, func(name string) bool { return strings.HasSuffix(folder, "/"+filepath.Clean(name)) }) {
		return
	}
	if !inSample(chosen, folder, tb.Name()) {
		tb.Skip("in the other half of the tests: " + envSample + "=" + chosen)
	}
}

func inSample(chosen, folder, test string) bool {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(chosen + filepath.Base(folder) + test))
	return sum.Sum32()>>16%2 == 0
}
