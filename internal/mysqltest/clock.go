package mysqltest

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// ClockOff builds the tests of the calling package with a wrong clock, and returns the program's path. In this program time.Now
// is ahead by off, in whole seconds. The monotonic clock, which measures durations, is right. The first build compiles the
// standard library again, which takes half a minute; later builds find it in Go's build cache.
func ClockOff(tb testing.TB, off time.Duration) (program string) {
	tb.Helper()
	return clockOff(tb, off, "test", "-c", "-vet=off")
}

// ProgramClockOff is ClockOff for the command in the test's package.
func ProgramClockOff(tb testing.TB, off time.Duration) (program string) {
	tb.Helper()
	return clockOff(tb, off, "build")
}

func clockOff(tb testing.TB, off time.Duration, build ...string) (program string) {
	tb.Helper()
	seconds := strconv.Itoa(int(off.Seconds()))
	root, err := exec.CommandContext(tb.Context(), "go", "env", "GOROOT").Output()
	require.NoError(tb, err)
	std := filepath.Join(strings.TrimSpace(string(root)), "src", "time", "time.go")
	source, err := os.ReadFile(std)
	require.NoError(tb, err)
	const reads = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n"
	require.Contains(tb, string(source), reads, "the standard library has changed")
	dir := tb.TempDir()
	changed, overlay := filepath.Join(dir, "time.go"), filepath.Join(dir, "overlay.json")
	require.NoError(tb, os.WriteFile(changed, []byte(strings.Replace(string(source), reads, reads+"\tsec += "+seconds+"\n", 1)), 0o600))
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{std: changed}})
	require.NoError(tb, err)
	require.NoError(tb, os.WriteFile(overlay, text, 0o600))
	program = filepath.Join(dir, "clock")
	out, err := exec.CommandContext(tb.Context(), "go", append(build, "-ldflags=-s -w", "-buildvcs=false", "-overlay", overlay, "-o", program, ".")...).CombinedOutput()
	require.NoError(tb, err, string(out))
	return program
}

// Clock is a clock that a test sets forward. Its zero value shows the time of the system. Safe for concurrent use.
type Clock struct{ ahead atomic.Int64 }

// Now returns the time.
func (c *Clock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

// Forward sets the clock forward.
func (c *Clock) Forward(d time.Duration) { c.ahead.Add(int64(d)) }
