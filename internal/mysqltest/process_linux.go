package mysqltest

import "syscall"

// processAttributes gives a server a process group of its own, so that the terminal's Ctrl-C does not
// reach it, and ties its life to the test's: however the test dies, the kernel kills the server.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
