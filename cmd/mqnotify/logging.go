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

type logging struct {
	format, level string
}

func (l *logging) register(root *cobra.Command) {
	root.PersistentFlags().StringVar(&l.format, "log-format", formatText, "the format of logs on stderr: text or json")
	root.PersistentFlags().StringVar(&l.level, "log-level", "info", "the least level that is logged: debug, info, warn or error")
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

// driverLog sends the driver's own output, such as broken connections, to the debug log, because errors contain the same
// information.
type driverLog struct{ log *slog.Logger }

func (d driverLog) Print(v ...any) {
	d.log.DebugContext(context.Background(), "driver", "said", fmt.Sprint(v...))
}
