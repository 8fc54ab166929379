//go:build !unix

package bridge

import (
	"os"
	"os/exec"
)

// ownGroup does nothing: there are no process groups here.
func ownGroup(*exec.Cmd) {}

// killGroup ends the program. It may have ended already.
func killGroup(p *os.Process) { _ = p.Kill() }
