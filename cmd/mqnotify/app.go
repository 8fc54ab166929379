package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Exit codes.
const (
	exitDone   = 0
	exitFailed = 1
	exitUsage  = 2 // the command line is wrong
)

// streams are the parts of the process that a command uses; tests replace them.
type streams struct {
	in       io.Reader
	out, err io.Writer
	environ  []string // "NAME=value"
}

// getenv is os.Getenv for the environment of the streams.
func (s *streams) getenv(name string) string {
	value := ""
	for _, pair := range s.environ {
		if key, v, _ := strings.Cut(pair, "="); key == name {
			value = v
		}
	}
	return value
}

// app is what all commands share.
type app struct {
	streams
	stderr     *redactor // writes logs and errors to err, without passwords
	log        *slog.Logger
	logging    logging
	connection connection
	child      child
	metrics    string             // --metrics
	commands   func() uint64      // the number of commands sent to the database; 0 unless --metrics is given
	inheritDSN bool               // commands that mqnotify runs get the secret variables
	warned     bool               // the log has warned that the server is not verified
	started    bool               // the command line was valid
	setDefault func(*slog.Logger) // slog.SetDefault, because packages log to the default logger
	unsetenv   func(name string) error
}

func newApp(s streams) *app {
	a := &app{streams: s, stderr: &redactor{to: s.err}, setDefault: func(*slog.Logger) {}, unsetenv: func(string) error { return nil }, commands: func() uint64 { return 0 }}
	a.log = slog.New(slog.NewTextHandler(a.stderr, nil))
	return a
}

// run runs the command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	root := newRoot(a)
	root.SetArgs(args)
	command, err := root.ExecuteContextC(ctx)
	var exit *exitError
	switch {
	case err == nil:
		return exitDone
	case errors.As(err, &exit):
		return exit.code
	case !a.started || isUsage(err):
		a.report(err.Error())
		a.note("usage: %s\nhelp: %s --help\n", command.UseLine(), command.CommandPath())
		return exitUsage
	default:
		lines := strings.FieldsFunc(a.explain(command, err).Error(), func(r rune) bool { return r == '\n' || r == '\r' })
		a.report(strings.Join(lines, "; "))
		return exitFailed
	}
}

// report writes the reason why the command failed: a log record with --log-format json, else a line.
func (a *app) report(text string) {
	if a.logging.format == formatJSON {
		a.log.Error(text)
		return
	}
	a.note("mqnotify: %s\n", text)
}

// note writes to stderr, in no log format.
func (a *app) note(format string, args ...any) { _, _ = fmt.Fprintf(a.stderr, format, args...) }
