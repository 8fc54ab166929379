// Demo shows how messages go from a producer to a consumer, without a server: on a MySQL-compatible engine inside its own process.
// `mqnotify demo` shows the same on a server.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/spf13/pflag"

	"github.com/mqnotify/mqnotify/demo/engine"
	"github.com/mqnotify/mqnotify/internal/demo"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run returns the exit code: 0 for success or if a signal has ended the demo, 1 for a failure, 2 for wrong arguments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := demo.Options{Topic: "messages", Out: stdout, Logger: slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	flags := pflag.NewFlagSet("demo", pflag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.IntVar(&o.Count, "count", 20, "how many messages")
	flags.DurationVar(&o.Interval, "interval", 50*time.Millisecond, "time between two messages")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err == nil && flags.NArg() > 0:
		err = fmt.Errorf("it takes only flags, no arguments: %q", flags.Args())
	case err == nil && o.Count < 1:
		err = fmt.Errorf("--count %d: 1 or more", o.Count)
	}
	if err != nil {
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return 2
	}
	if err := show(ctx, o, stderr); err != nil {
		_, _ = fmt.Fprintln(stderr, "demo:", err)
		return 1
	}
	return 0
}

func show(ctx context.Context, o demo.Options, stderr io.Writer) (err error) {
	e, err := engine.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	config := e.Config()
	config.Logger = &mysql.NopLogger{} // the engine breaks the connections at the end
	consuming, err := notify.OpenConfig(config)
	if err != nil {
		return err
	}
	defer func() { _ = consuming.Close() }() // its error has no remedy
	producing, err := notify.OpenConfig(config)
	if err != nil {
		return err
	}
	defer func() { _ = producing.Close() }()
	if err := schema.Init(ctx, producing.Pool(), o.Topic); err != nil {
		return err
	}
	o.Writers, o.Grace = "unknown", time.Second // the engine can't show its transactions
	_, _ = fmt.Fprintf(stderr, "An embedded MySQL-compatible engine listens on %s; a producer and a consumer use it.\n"+
		"For trying only: it stores nothing on the disk, and its transactions run one at a time.\n\n", config.Addr)
	latencies, err := demo.Run(ctx, consuming, producing, o)
	if len(latencies) > 0 {
		_, _ = fmt.Fprintf(stderr, "\n%s.\nNext, on your own server: mqnotify demo, then mqnotify init, produce and consume.\n", latencies)
	}
	return err
}
