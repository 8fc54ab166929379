//go:build unix

package mysqltest

import (
	"os"
	"syscall"
)

var (
	signalTerminate os.Signal = syscall.SIGTERM
	signalFreeze    os.Signal = syscall.SIGSTOP
	signalThaw      os.Signal = syscall.SIGCONT
)
