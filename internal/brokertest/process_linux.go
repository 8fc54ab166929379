package brokertest

import "syscall"

// attributes tie the broker's life to the test's, however that ends, and keep the
// terminal's Ctrl-C from it.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
