//go:build unix

package main

import (
	"os"
	"os/signal"
	"syscall"
)

// terminate is the signal that asks a command to end.
const terminate = syscall.SIGTERM

// passedOn are the signals that a command gets from us besides those that end us.
var passedOn = []os.Signal{syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2}

// stopWithUs makes Ctrl-Z, which does not reach the commands, stop them as long as it stops
// us: nothing renews their lock, or their task, meanwhile, and others get it.
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
