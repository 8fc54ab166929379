//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// terminate is the signal that asks a command to end.
const terminate = syscall.SIGTERM

// passedOn are the signals that mqnotify passes to its command, other than those that end mqnotify.
var passedOn = []os.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// stopWithUs stops the commands while Ctrl-Z stops mqnotify, because a stopped mqnotify does not renew their lock or task,
// and another process gets it. Ctrl-Z itself does not reach the commands, which have process groups of their own.
func (c *child) stopWithUs() {
	if signal.Ignored(syscall.SIGTSTP) {
		return
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTSTP)
	go func() {
		for range stop {
			c.mu.Lock() // no command starts meanwhile
			c.signal(syscall.SIGSTOP)
			stopUs()
			c.signal(syscall.SIGCONT)
			c.mu.Unlock()
		}
	}()
}
