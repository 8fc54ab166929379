//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopUs stops us until SIGCONT continues us. Go does not give SIGTSTP's own action back, and
// SIGSTOP stops even a process that no shell can continue, as after `ssh -t`: SIGTTOU does what SIGTSTP
// would.
func stopUs() {
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, syscall.SIGCONT)
	defer signal.Stop(goOn)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGTTOU)
	select {
	case <-goOn:
	case <-time.After(time.Second): // we were not stopped
	}
}
