//go:build !unix

package bridge

import (
	"os"
	"os/exec"
)

// ownGroup does nothing: this system has no process groups.
func ownGroup(*exec.Cmd) {}

// killGroup kills the program, which may have ended already.
func killGroup(p *os.Process) { _ = p.Kill() }
