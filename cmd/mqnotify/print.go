package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/metrics"
)

const (
	formatPayload = "payload"
	timeFormat    = "2006-01-02T15:04:05.000000Z07:00"
)

// messageFormat writes a message, without a line break.
type messageFormat func(out *bufio.Writer, m consumer.Message) error

// printer writes messages to stdout.
type printer struct {
	out    *bufio.Writer
	format messageFormat
	// fail ends the run after a failure to write to stdout. Such a message must neither be tried again nor go to the dead letters.
	fail context.CancelCauseFunc
}

// printing returns a function for follow that prints messages. They count as handled after they were written to stdout.
func (a *app) printing(format messageFormat) func(*metrics.Reader, context.CancelCauseFunc) consumer.Handler {
	return func(reader *metrics.Reader, fail context.CancelCauseFunc) consumer.Handler {
		p := &printer{bufio.NewWriterSize(a.out, 64<<10), format, fail}
		return consumer.Batch(func(_ context.Context, messages []consumer.Message) error {
			reader.Delivered(messages, time.Now())
			return p.print(messages)
		})
	}
}

func (p *printer) print(messages []consumer.Message) error {
	for _, m := range messages {
		err := p.format(p.out, m)
		if err == nil {
			err = p.out.WriteByte('\n')
		}
		if err != nil {
			return p.failed(err)
		}
	}
	return p.failed(p.out.Flush())
}

func (p *printer) failed(err error) error {
	if err == nil {
		return nil
	}
	err = outputError{fmt.Errorf("print: %w", err)}
	p.fail(err)
	return err
}

// parseFormat parses --format.
func parseFormat(text string) (messageFormat, error) {
	switch text {
	case formatJSON:
		return printJSON, nil
	case formatPayload:
		return func(out *bufio.Writer, m consumer.Message) error {
			_, err := out.Write(m.Payload)
			return err
		}, nil
	}
	if !strings.Contains(text, "{{") {
		return nil, usagef("--format %q: write json, payload, or a Go template such as '{{.ID}} {{.Payload}}'", text)
	}
	t, err := template.New("format").Option("missingkey=zero").Funcs(template.FuncMap{"json": toJSON}).Parse(text)
	if err != nil {
		return nil, usagef("--format: %w", err)
	}
	return func(out *bufio.Writer, m consumer.Message) error {
		return t.Execute(out, shown{m.ID, m.Topic, m.CreatedAt, m.Headers, string(m.Payload), m.IsRow})
	}, nil
}

func printJSON(out *bufio.Writer, m consumer.Message) error {
	line, err := m.MarshalJSON()
	if err != nil {
		return err
	}
	_, err = out.Write(line)
	return err
}

// shown is the data of a --format template.
type shown struct {
	ID        uint64
	Topic     string
	CreatedAt time.Time
	Headers   map[string]string
	Payload   string
	isRow     bool
}

// Row returns the columns by name. It fails for a message table.
func (s shown) Row() (map[string]any, error) {
	if !s.isRow {
		return nil, fmt.Errorf("%s is a message table: its messages have .ID, .CreatedAt, .Headers and .Payload", s.Topic)
	}
	decoder := json.NewDecoder(strings.NewReader(s.Payload))
	decoder.UseNumber() // a float64 would lose bits of a 64-bit id
	var row map[string]any
	err := decoder.Decode(&row)
	return row, err
}

// toJSON returns a line of JSON, without its newline, in which <, > and & are as they are. It is the template function json.
func toJSON(value any) (string, error) {
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	err := encoder.Encode(value)
	return strings.TrimSuffix(out.String(), "\n"), err
}
