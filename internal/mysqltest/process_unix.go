//go:build unix && !linux

package mysqltest

import "syscall"

// processAttributes leaves the server in the test's process group, so that Ctrl-C in the terminal ends both. Only Linux can
// send a signal when the parent dies.
func processAttributes() *syscall.SysProcAttr { return nil }
