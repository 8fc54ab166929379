package mysqltest

import "syscall"

// processAttributes gives a server a process group of its own, so that the terminal's Ctrl-C does not
// reach it, and makes the kernel kill the server when the test process dies.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
