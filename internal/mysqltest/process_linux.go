package mysqltest

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

// processAttributes gives a server a process group of its own, so that the terminal's Ctrl-C does not
// reach it, and ties its life to the test's: however the test dies, the kernel kills the server.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitStopped waits until all threads of our child have stopped: a signal takes effect a little later
// than it is sent. It returns as well when the child is gone.
func awaitStopped(pid int) {
	for {
		if err := unix.Waitid(unix.P_PID, pid, nil, unix.WSTOPPED, nil); !errors.Is(err, unix.EINTR) {
			return // ECHILD is the only other error: the child is gone
		}
	}
}
