package main

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/demo"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/wake"
)

func newDemo(a *app) *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Watch messages go from a producer to a consumer on your server",
		Long: `Makes a message table with a random name, runs a producer and a consumer on it, and drops it.
The consumer sleeps in the server, and the producer's rows wake it. demo prints a line for each
message, with the time from before the publish until the consumer received it, and ends after
the last one. mqnotify's own tables, which init also makes, stay in the database.

To see the same without a server, run this in a clone of the repository: go run ./demo`,
		Example: `  mqnotify demo
  mqnotify demo --count 1000 --interval 0`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if o.Count < 1 {
				return usagef("--count %d: 1 or more", o.Count)
			}
			return a.demo(cmd.Context(), o)
		},
	}
	cmd.Flags().IntVar(&o.Count, "count", 20, "how many messages")
	cmd.Flags().DurationVar(&o.Interval, "interval", 50*time.Millisecond, "time between two messages")
	return cmd
}

func (a *app) demo(ctx context.Context, o demo.Options) (err error) {
	consuming, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(consuming)
	producing, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(producing)
	quiet, err := (&logging{format: a.logging.format, level: "warn"}).logger(a.stderr)
	if err != nil {
		return err
	}
	// The consumer logs how it waits, and why it polls if it does.
	o.Out, o.Logger, o.Topic = brokenStdout{a.out}, a.log, "mqnotify_demo_"+strings.ToLower(rand.Text()[:8])
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, dropping := producing.Pool().ExecContext(ctx, "DROP TABLE IF EXISTS "+ident.Quote(o.Topic))
		err = errors.Join(err, dropping)
	}()
	if err := schema.Init(ctx, producing.Pool(), o.Topic); err != nil {
		return err
	}
	if err := wake.InstallAll(ctx, producing, quiet, o.Topic); err != nil {
		return err
	}
	a.note("A producer and a consumer work on the table %s of the database %s.\n\n", o.Topic, producing.Name())
	latencies, err := demo.Run(ctx, consuming, producing, o)
	if len(latencies) > 0 {
		a.note("\n%s.\nNext: mqnotify init, produce and consume (mqnotify --help).\n", latencies)
	}
	return ignoreBrokenPipe(err)
}
