package main

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// stopUs stops us until somebody continues us. Go does not give SIGTSTP's own action back, and
// SIGSTOP stops even those whom no shell can continue, as after `ssh -t`: SIGTTOU does what SIGTSTP
// would. Sent to the very thread it takes effect before the call returns, on the busiest machine.
func stopUs() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTTOU)
}
