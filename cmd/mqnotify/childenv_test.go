//go:build unix

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// The commands that mqnotify runs do not get the password, unless --inherit-dsn is set.
func TestCommandsHaveNoDSN(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, _ := database(t, s, "orders")
		succeed(t, config, "produce", "orders", "1")
		succeed(t, config, "init", "--queue", "mail")
		folder := t.TempDir()
		for name, args := range map[string]string{
			"lock":    "lock a -- COMMAND",
			"once":    "once KEY -- COMMAND",
			"work":    "work mail -- COMMAND",
			"consume": "consume orders --group g --from beginning --stop-at-end -- COMMAND",
			"listen":  "listen hello --limit 1 -- COMMAND",
			"bridge":  "bridge orders --reset --group b --stop-at-end --to exec:PROGRAM",
		} {
			for _, inherit := range []string{"", "--inherit-dsn"} {
				file := filepath.Join(folder, name+inherit)
				script := file + ".sh"
				require.NoError(t, os.WriteFile(script, []byte("#!/bin/sh\nenv > "+file+".new; mv "+file+".new "+file+"; [ "+name+" != bridge ] || while read l; do echo 1; done\n"), 0o755)) //nolint:gosec // it is a program
				line := words(strings.NewReplacer("COMMAND", script, "PROGRAM", script, "KEY", "k"+inherit).Replace(args))
				if inherit != "" {
					line = append([]string{line[0], inherit}, line[1:]...)
				}
				if name == "work" {
					succeed(t, config, "enqueue", "mail", "x")
				}
				if name == "consume" {
					line = append([]string{line[0], "--reset"}, line[1:]...)
				}
				p := newProcess(t, config, line...)
				p.Env = append(p.Env, envTo+"=s3cret", envFrom+"=s3cret")
				p.Stdout, p.Stderr = &p.out, &p.err
				p.start(t)
				mysqltest.Eventually(t, "the command runs", func() bool {
					if name == "listen" {
						succeed(t, config, "notify", "hello")
					}
					_, err := os.Stat(file)
					return err == nil
				})
				_ = p.Process.Signal(os.Interrupt) // it may have ended
				<-p.ended
				text, err := os.ReadFile(file)
				require.NoError(t, err)
				for _, secret := range []string{envDSN, envTo, envFrom} {
					require.Equal(t, inherit != "", strings.Contains("\n"+string(text), "\n"+secret+"="), "%s %s: %s", name, inherit, secret)
				}
			}
		}
	})
}

// If a command line or environment is too long for the system, the error names the argument or variable.
func TestCommandTooLong(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s, "orders")
		long := strings.Repeat("x", 200_000)
		message := fail(t, exitFailed, config, "lock", "a", "--", "true", "b", long)
		require.Contains(t, message, "argument 2 alone has 200000")
		require.Contains(t, message, "argument list too long")
		require.Less(t, len(message), 1000)
		message = fail(t, exitFailed, config, "once", "a", "--", "true", long)
		require.Contains(t, message, "argument 1 alone has 200000")

		succeed(t, config, "produce", "orders", "--header", "kind="+long, "1")
		succeed(t, config, "consume", "orders", "--group", "g", "--from", "beginning", "--attempts", "1", "--stop-at-end", "--", "true")
		var reason string
		require.NoError(t, db.GetContext(t.Context(), &reason, "SELECT error FROM mqnotify_dead_letter"))
		require.Contains(t, reason, "the variable MQNOTIFY_HEADER")
		require.Contains(t, reason, "alone has 2000")
	})
}
