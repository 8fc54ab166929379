//go:build !nodemo

package demo

import (
	"testing"

	"go.uber.org/goleak"
)

// No goroutine is ignored: an engine that was closed leaves none.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
