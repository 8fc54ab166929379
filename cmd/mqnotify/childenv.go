package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// secretVariables are the variables that may have a password in them.
var secretVariables = []string{envDSN, envTo, envFrom}

// registerInherit adds --inherit-dsn to a command that runs commands.
func (a *app) registerInherit(cmd *cobra.Command, what string) {
	cmd.Flags().BoolVar(&a.inheritDSN, "inherit-dsn", false, what+" gets "+strings.Join(secretVariables, ", ")+" too")
}

// childEnv returns the environment of a command that mqnotify runs: its own without the variables that may have a
// password in them, unless --inherit-dsn is given, and these variables.
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

// startError says what was too long, if the system refuses the command's arguments and environment (E2BIG).
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
	return fmt.Errorf("%w: arguments and environment have %d bytes together, %s alone %d, and the system takes fewer (Linux: 128 KiB each): "+
		"give the command a file or its stdin instead, which has the payload but no headers", err, total, longest, size)
}
