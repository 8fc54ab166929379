package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// secretVariables are the environment variables that may contain a password.
var secretVariables = []string{envDSN, envTo, envFrom}

// registerInherit adds --inherit-dsn to a command that runs commands.
func (a *app) registerInherit(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&a.inheritDSN, "inherit-dsn", false, what+" also gets "+strings.Join(secretVariables, ", "))
}

// childEnv returns the environment of a command that mqnotify runs: mqnotify's own, and variables. It has no
// secretVariables, unless --inherit-dsn is given.
func (a *app) childEnv(variables []string) []string {
	environ := slices.Clone(a.environ)
	if !a.inheritDSN {
		environ = slices.DeleteFunc(environ, func(pair string) bool {
			name, _, _ := strings.Cut(pair, "=")
			return slices.Contains(secretVariables, name)
		})
	}
	return append(environ, variables...)
}

// startError adds to E2BIG, with which the system refuses arguments and environment that are too long, which of them is
// the longest. It returns any other error as it is.
func startError(err error, args, environ []string) error {
	if !errors.Is(err, syscall.E2BIG) {
		return err
	}
	longest, size, total := "", 0, 0
	add := func(name, text string) {
		total += len(text) + 1
		if len(text) > size {
			longest, size = name, len(text)
		}
	}
	for i, arg := range args {
		add(fmt.Sprintf("argument %d", i), arg)
	}
	for _, pair := range environ {
		name, _, _ := strings.Cut(pair, "=")
		add("the variable "+name, pair)
	}
	return fmt.Errorf("%w: arguments and environment have %d bytes together, %s alone has %d, and the system allows fewer (Linux: 128 KiB each): "+
		"have the command read its stdin, which has the payload but no headers, or a file", err, total, longest, size)
}
