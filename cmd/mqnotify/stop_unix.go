//go:build unix && !linux

package main

import (
	"os"
	"os/signal"
	"syscall"
	"time"
)

// stopUs stops this process until SIGCONT continues it. It sends SIGTTOU, whose default action is that of SIGTSTP, because Go can't
// restore SIGTSTP's default action, and SIGSTOP would also stop a process that no shell can continue, as after `ssh -t`.
func stopUs() {
	goOn := make(chan os.Signal, 1)
	signal.Notify(goOn, syscall.SIGCONT)
	defer signal.Stop(goOn)
	_ = syscall.Kill(syscall.Getpid(), syscall.SIGTTOU)
	select {
	case <-goOn:
	case <-time.After(time.Second): // the signal did not stop this process
	}
}
