package main

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"syscall"
	"text/tabwriter"
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

// writeJSON writes the value as a line of JSON to stdout.
func writeJSON(out io.Writer, value any) error {
	return writeLines(out, []any{value}, func(value any) any { return value })
}

// writeLines writes each element as a line of JSON, in the form that show returns, to stdout.
func writeLines[T any](out io.Writer, all []T, show func(T) any) error {
	var text strings.Builder
	lines := json.NewEncoder(&text)
	for _, one := range all {
		if err := lines.Encode(show(one)); err != nil {
			return err
		}
	}
	return writeAll(out, text.String())
}

// writeList writes a list to stdout: with --json a line of JSON for each element, in the form that show returns, else table's text.
func writeList[T any](out io.Writer, asJSON bool, all []T, show func(T) any, table func([]T) string) error {
	if asJSON {
		return writeLines(out, all, show)
	}
	return writeAll(out, table(all))
}

// aligned returns rows with tabs between their cells as a table with aligned columns.
func aligned(rows []string) string {
	var out strings.Builder
	columns := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	_, _ = io.WriteString(columns, strings.Join(rows, "\n")+"\n") // a strings.Builder never fails
	_ = columns.Flush()
	return out.String()
}

// ignoreBrokenPipe returns nil if the reader of stdout, such as head, has ended. The command then ends quietly.
func ignoreBrokenPipe(err error) error {
	if errors.As(err, &outputError{}) && errors.Is(err, syscall.EPIPE) {
		return nil
	}
	return err
}
