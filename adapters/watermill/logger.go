package watermill

import (
	"context"
	"errors"
	"log/slog"

	"github.com/ThreeDotsLabs/watermill"
)

// handler passes mqnotify's log records to a Watermill logger.
type handler struct{ to watermill.LoggerAdapter }

var _ slog.Handler = handler{}

func (handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, record slog.Record) error {
	fields := watermill.LogFields{}
	var failure error
	record.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "error" {
			failure = err
		} else {
			fields[a.Key] = a.Value.Any()
		}
		return true
	})
	switch {
	case record.Level >= slog.LevelWarn:
		if failure == nil {
			failure = errors.New(record.Message)
		}
		h.to.Error(record.Message, failure, fields)
	case record.Level >= slog.LevelInfo:
		h.to.Info(record.Message, fields)
	default:
		if failure != nil {
			fields["error"] = failure.Error()
		}
		h.to.Debug(record.Message, fields)
	}
	return nil
}

func (h handler) WithAttrs(attributes []slog.Attr) slog.Handler {
	fields := watermill.LogFields{}
	for _, a := range attributes {
		fields[a.Key] = a.Value.Any()
	}
	return handler{h.to.With(fields)}
}

// WithGroup ignores the group, because Watermill's fields have no groups.
func (h handler) WithGroup(string) slog.Handler { return h }
