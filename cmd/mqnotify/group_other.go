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

// terminate ends a command.
var terminate = os.Kill

// passedOn are the signals that a command gets from us besides those that end us.
var passedOn []os.Signal

// signalGroup ends the command: there is no other signal. It may have ended already.
func signalGroup(p *os.Process, _ os.Signal) { _ = p.Kill() }

// stopWithUs does nothing: nobody is stopped here.
func (*child) stopWithUs() {}

// exitCode is the command's.
func exitCode(state *os.ProcessState) int { return state.ExitCode() }
