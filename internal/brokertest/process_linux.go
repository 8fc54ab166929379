package brokertest

import "syscall"

// attributes makes the broker end with the test process, however that ends, and protects it from the
// terminal's Ctrl-C.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
