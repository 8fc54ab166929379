package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/cobra"
)

const (
	formatText = "text"
	formatJSON = "json"
)

// logging is how logs look.
type logging struct {
	format, level string
}

func (l *logging) register(root *cobra.Command) {
	root.PersistentFlags().StringVar(&l.format, "log-format", formatText, "logs on stderr as text or json")
	root.PersistentFlags().StringVar(&l.level, "log-level", "info", "least level of logs: debug, info, warn or error")
	completeWith(root, "log-format", formatText, formatJSON)
	completeWith(root, "log-level", "debug", "info", "warn", "error")
}

func (l *logging) logger(to io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, usagef("--log-level %q: write debug, info, warn or error", l.level)
	}
	options := slog.HandlerOptions{Level: level}
	if l.format == formatJSON {
		return slog.New(slog.NewJSONHandler(to, &options)), nil
	}
	return slog.New(slog.NewTextHandler(to, &options)), oneOf("log-format", l.format, formatText, formatJSON)
}

// driverLog makes what the driver prints, such as each connection that broke, a
// debug log: what matters of it is in an error too.
type driverLog struct{ log *slog.Logger }

func (d driverLog) Print(v ...any) {
	d.log.DebugContext(context.Background(), "driver", "said", fmt.Sprint(v...))
}
