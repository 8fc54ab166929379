package main

import (
	"errors"
	"io"
	"syscall"
)

// outputError is a failure to write to stdout.
type outputError struct{ error }

func (e outputError) Unwrap() error { return e.error }

// writeAll writes the text to stdout. Its error is an outputError.
func writeAll(out io.Writer, text string) error {
	if _, err := io.WriteString(out, text); err != nil {
		return outputError{err}
	}
	return nil
}

// ignoreBrokenPipe returns nil if the reader of stdout, such as head, has ended. The command then ends quietly.
func ignoreBrokenPipe(err error) error {
	if errors.As(err, &outputError{}) && errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
