package bridge

import (
	"context"
	"io"
	"os"
	"sync/atomic"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

func parseStdout(*params) *Destination { return Writer(os.Stdout) }

// Writer returns a destination that writes a line of JSON for each message, with one Write for each Send. A message is confirmed when it
// was written. Close neither closes the writer nor ends a Write that hangs.
func Writer(to io.Writer) *Destination {
	return &Destination{Name: "stdout", InFlight: 500, Open: func(context.Context) (Sink, error) {
		return &writerSink{to: to}, nil
	}}
}

type writerSink struct {
	to     io.Writer
	closed atomic.Bool
}

func (s *writerSink) Send(ctx context.Context, messages []consumer.Message) (int, error) {
	if s.closed.Load() {
		return 0, notify.ErrClosed
	}
	if ctx.Err() != nil {
		return 0, context.Cause(ctx)
	}
	var text []byte
	for i, m := range messages {
		l, err := line(m)
		if err != nil {
			if i == 0 {
				return 0, poison(m, "it can't be encoded as JSON: %w", err)
			}
			messages = messages[:i]
			break
		}
		text = append(text, l...)
	}
	if _, err := s.to.Write(text); err != nil {
		return 0, permanent(err) // it is unknown how much was read, and there is no other stdout
	}
	return len(messages), nil
}

func (s *writerSink) Close() error {
	s.closed.Store(true)
	return nil
}
