//go:build !unix

package main

import (
	"os"
	"os/exec"
)

// setGroup does nothing: there are no process groups here, nor a gentler way to
// end a command than to kill it.
func setGroup(*exec.Cmd) {}

// killGroup ends the command. It may have ended already.
func killGroup(p *os.Process) { _ = p.Kill() }
