package main

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// stopUs stops us until SIGCONT continues us. Go does not give SIGTSTP's own action back, and
// SIGSTOP stops even a process that no shell can continue, as after `ssh -t`: SIGTTOU does what SIGTSTP
// would. Sent to the very thread, it takes effect before the call returns, even on a busy machine.
func stopUs() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTTOU)
}
