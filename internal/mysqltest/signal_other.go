//go:build !unix

package mysqltest

import (
	"os"
	"syscall"
)

// These systems have only the kill: a stop kills, and Freeze fails the test that calls it.
var (
	signalTerminate = os.Kill
	signalFreeze    = os.Interrupt
	signalThaw      = os.Interrupt
)

func processAttributes() *syscall.SysProcAttr { return nil }
