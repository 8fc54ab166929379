package child

import (
	"errors"

	"golang.org/x/sys/unix"
)

// AwaitStopped waits, after a SIGSTOP, until all threads of the process have stopped, because a signal takes
// effect a little later than it is sent. It also returns if the process is gone.
func (p *Process) AwaitStopped() {
	for {
		if err := unix.Waitid(unix.P_PID, p.Pid, nil, unix.WSTOPPED, nil); !errors.Is(err, unix.EINTR) {
			return // ECHILD is the only other error: the process is gone
		}
	}
}
