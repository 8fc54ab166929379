//go:build unix

package consumer

import (
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cpu returns the processor time that this process has used.
func cpu(tb testing.TB) time.Duration {
	tb.Helper()
	var usage syscall.Rusage
	require.NoError(tb, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
