package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/notify"
)

// usageError is a mistake in the command line: run prints the usage after it, and exits with exitUsage.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// isUsage reports whether the command line caused the error: an invalid flag or option, or an invalid name.
func isUsage(err error) bool {
	var wrong usageError
	return errors.As(err, &wrong) || errors.Is(err, notify.ErrOptions)
}

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// oneName accepts exactly one argument. what names it in errors ("TOPIC").
func oneName(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return errors.New(what + " is missing")
		case 1:
			return nil
		}
		return fmt.Errorf("one %s only: %q is a second one", what, args[1])
	}
}

var errNoCommand = usageError{errors.New("give the command to run after --")}

// oneNameAndCommand accepts exactly one argument, which what names in errors, and an optional command after --.
func oneNameAndCommand(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if cmd.ArgsLenAtDash() < 0 && len(args) > 1 {
			return fmt.Errorf("one %s only: %q is a second one. A command to run comes after --", what, args[1])
		}
		return andCommand(oneName(what))(cmd, args)
	}
}

// andCommand accepts the arguments that names accepts, and an optional command after --.
func andCommand(names cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if dash := cmd.ArgsLenAtDash(); dash >= 0 {
			if len(args) == dash { // as of "-- $HANDLER" with an empty variable
				return errNoCommand
			}
			args = args[:dash]
		}
		return names(cmd, args)
	}
}

// someNames accepts one or more arguments. what names the first in errors.
func someNames(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New(what + " is missing")
		}
		return nil
	}
}

// oneOf checks a flag that takes one of a few words.
func oneOf(flag, value string, words ...string) error {
	if slices.Contains(words, value) {
		return nil
	}
	last := len(words) - 1
	return usagef("--%s %q: write %s or %s", flag, value, strings.Join(words[:last], ", "), words[last])
}

// completeWith makes the shell complete a flag with these words only.
func completeWith(cmd *cobra.Command, flag string, words ...string) {
	complete(cmd, flag, cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp))
}

// completeFiles makes the shell complete these flags with file names. It completes nothing else with file names (newRoot).
func completeFiles(cmd *cobra.Command, flags ...string) {
	for _, flag := range flags {
		complete(cmd, flag, cobra.FixedCompletions(nil, cobra.ShellCompDirectiveDefault))
	}
}

func complete(cmd *cobra.Command, flag string, with cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, with); err != nil {
		panic(err) // the flag does not exist, or was registered twice
	}
}
