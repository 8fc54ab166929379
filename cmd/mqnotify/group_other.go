//go:build !unix

package main

import "os"

// terminate is the signal that ends a command.
var terminate = os.Kill

// passedOn are the signals that mqnotify passes to its command, other than those that end mqnotify.
var passedOn []os.Signal

// stopWithUs does nothing, because this system has no signal that stops a process.
func (*child) stopWithUs() {}
