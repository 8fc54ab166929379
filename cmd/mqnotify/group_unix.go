//go:build unix

package main

import (
	"os"
	"os/exec"
	"syscall"
)

// setGroup gives the command a process group of its own, so that Ctrl-C does not
// reach it and it can finish, and so that what it starts ends with it.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// killGroup ends the command and what it started. There may be nothing left.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
