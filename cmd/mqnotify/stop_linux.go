package main

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// stopUs stops this process until SIGCONT continues it. It sends SIGTTOU, whose default action is that of SIGTSTP, because Go can't
// restore SIGTSTP's default action, and SIGSTOP would also stop a process that no shell can continue, as after `ssh -t`. Sent to
// this thread, the signal takes effect before the call returns, even on a busy machine.
func stopUs() {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	_ = unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGTTOU)
}
