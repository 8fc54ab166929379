//go:build unix && !linux

package mysqltest

import "syscall"

// processAttributes leaves the server in the test's process group: without Linux's signal at the
// parent's death, the terminal's Ctrl-C is what ends it with the test.
func processAttributes() *syscall.SysProcAttr { return nil }
