//go:build unix

package bridge

import (
	"os"
	"os/exec"
	"syscall"
)

// ownGroup gives the program a process group of its own: a terminal's Ctrl-C is for the bridge, which
// lets the program finish what is under way.
func ownGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup ends the program and what it has started. There may be nothing left.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
