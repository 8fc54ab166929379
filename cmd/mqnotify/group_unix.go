//go:build unix

package main

import (
	"os"
	"os/exec"
	"os/signal"
	"syscall"
)

// setGroup gives the command a process group of its own, so that Ctrl-C does not
// reach it and it can finish, and so that what it starts ends with it.
func setGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
}

// terminate is the signal that asks a command to end.
const terminate = syscall.SIGTERM

// passedOn are the signals that a command gets from us besides those that end us.
var passedOn = []os.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// signalGroup sends a signal to the command and what it started. There may be nothing left.
func signalGroup(p *os.Process, s os.Signal) {
	if number, ok := s.(syscall.Signal); ok {
		_ = syscall.Kill(-p.Pid, number)
	}
}

// stopWithUs makes Ctrl-Z, which does not reach the commands, stop them as long as it stops
// us: nobody renews their lock, or their task, meanwhile, and others get it.
func (c *child) stopWithUs() {
	if signal.Ignored(syscall.SIGTSTP) {
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTSTP)
	go func() {
		for range stop {
			c.mu.Lock() // no command begins while we are stopped
			c.signal(syscall.SIGSTOP)
			stopUs()
			c.signal(syscall.SIGCONT)
			c.mu.Unlock()
		}
	}()
}

// signal sends a signal to the commands that run now. The caller holds mu.
func (c *child) signal(s os.Signal) {
	for p := range c.processes {
		signalGroup(p, s)
	}
}

// exitCode is the command's, or 128 and the number of the signal that ended it, as in a
// shell.
func exitCode(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return state.ExitCode()
}

// killGroup ends the command and what it started. There may be nothing left.
func killGroup(p *os.Process) { _ = syscall.Kill(-p.Pid, syscall.SIGKILL) }
