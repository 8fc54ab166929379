//go:build !unix

package mysqltest

import (
	"os"
	"syscall"
)

// There is only the kill here: a stop is one, and freezing fails the test that asks for it.
var (
	signalTerminate = os.Kill
	signalFreeze    = os.Interrupt
	signalThaw      = os.Interrupt
)

func processAttributes() *syscall.SysProcAttr { return nil }
