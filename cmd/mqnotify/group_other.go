//go:build !unix

package main

import "os"

// terminate ends a command.
var terminate = os.Kill

// passedOn are the signals that a command gets from us besides those that end us.
var passedOn []os.Signal

// stopWithUs does nothing: this system has no signal that stops a process.
func (*child) stopWithUs() {}
