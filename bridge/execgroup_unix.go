//go:build unix

package bridge

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup gives the program a process group of its own, so that a terminal's Ctrl-C reaches only the bridge, which lets the program
// finish.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills all processes of the program's group. All may have ended already.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
