package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/bench"
)

// benchOptions are bench's flags.
type benchOptions struct {
	bench.Options
	json bool
	plot string
}

func newBench(a *app) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [" + strings.Join(bench.Suites, "|") + "]...",
		Short: "Measure what mqnotify does on this server, beside its floor",
		Long: `Measures the suites, all if none is named, with bare statements on the same server in
the same rounds as the floor. It makes tables in the database and drops them. The tables that
init makes for all topics, and the routines that mqnotify wake install makes, stay: the
account needs the privileges of mqnotify grants --role admin.

  latency      from Publish, and from its return, to the handler of another process
  throughput   rows that are published, and read from a backlog, a second
  idle         statements a second of a consumer and a producer that wait, by the wake trigger and
               by polling, less those of others in a window before, and how soon they have a message
  fanout       from an INSERT until the last of many listeners has seen it
  queue        from Enqueue to an idle worker's handler, and tasks a second of four workers
  writers      INSERTs a second of saturating writers, with a wake trigger and with an empty one, and
               the longest INSERT

ratio is the median by that of the floor. For a time 1 would be as fast as bare
statements, for a rate (rows/s, tasks/s) too. The load of whoever else uses the server is in
all figures.`,
		Example: `  mqnotify bench
  mqnotify bench latency --rounds 1000 --plot latency.svg
  mqnotify bench throughput idle --json`,
		ValidArgs: bench.Suites,
		Args:      cobra.OnlyValidArgs,
		RunE:      func(cmd *cobra.Command, args []string) error { return a.bench(cmd.Context(), o, args) },
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Rounds, "rounds", 200, "rounds of latency, fanout and queue, after a tenth as many to warm up")
	flags.IntVar(&o.Rows, "rows", 100_000, "rows of throughput; a tenth as many tasks of queue")
	flags.IntVar(&o.Listeners, "listeners", 50, "listeners of fanout, with five connections each")
	flags.IntVar(&o.Writers, "writers", 64, "the most writers of writers")
	flags.DurationVar(&o.Window, "for", 10*time.Second, "how long idle counts statements, five times; what comes less often\nis not seen: a parked listener makes one a minute")
	flags.BoolVar(&o.json, "json", false, "print a JSON object for each suite")
	flags.StringVar(&o.plot, "plot", "", "draw the distributions of the times, and latency against idle\nstatements, into this file (.svg, .png, .pdf)")
	completeNothing(cmd, "rounds", "rows", "listeners", "writers", "for")
	return cmd
}

func (a *app) bench(ctx context.Context, o benchOptions, suites []string) error {
	for name, n := range map[string]int{"rounds": o.Rounds, "rows": o.Rows, "listeners": o.Listeners, "writers": o.Writers} {
		if n < 1 {
			return usagef("--%s %d: 1 or more", name, n)
		}
	}
	if o.Window < 100*time.Millisecond {
		return usagef("--for %v: 100ms or more", o.Window)
	}
	if len(suites) == 0 {
		suites = bench.Suites
	}
	config, err := a.config()
	if err != nil {
		return err
	}
	if config.DBName == "" {
		return errNoDatabase
	}
	shown := time.Now()
	o.Progress = func(suite string, done, of int) {
		if time.Since(shown) > 5*time.Second {
			shown = time.Now()
			a.log.InfoContext(ctx, "measuring", "suite", suite, "done", fmt.Sprintf("%d %%", 100*done/of))
		}
	}
	polls := false
	o.Polls = func(why string) {
		if !polls {
			a.log.WarnContext(ctx, "listeners of this account poll, and have the figures of polling", "why", why)
		}
		polls = true
	}
	var all []bench.Figure
	for _, suite := range suites {
		figures, err := bench.Run(ctx, suite, config, o.Options)
		if err != nil {
			return err
		}
		if err := a.printFigures(suite, figures, o.json); err != nil {
			return ignoreBrokenPipe(err)
		}
		all = append(all, figures...)
	}
	if o.plot != "" {
		return bench.Plot(o.plot, all)
	}
	return nil
}

func (a *app) printFigures(suite string, figures []bench.Figure, asJSON bool) error {
	if asJSON {
		line, err := json.Marshal(struct {
			Suite   string         `json:"suite"`
			Figures []bench.Figure `json:"figures"`
		}{suite, figures})
		if err != nil {
			return err
		}
		return writeAll(a.out, string(line)+"\n")
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintf(table, "%s\tmedian\tp99\tmax\t\tratio\tto\t\n", strings.ToUpper(suite))
	for _, f := range figures {
		ratio := ""
		if f.Ratio > 0 {
			ratio = fmt.Sprintf("%.2f", f.Ratio)
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t\n", f.Name, number(f.Median), number(f.P99), number(f.Max), f.Unit, ratio, f.Floor)
	}
	_ = table.Flush() // into memory
	return writeAll(a.out, text.String()+"\n")
}

// number has three digits that mean something.
func number(x float64) string {
	switch {
	case x >= 100:
		return fmt.Sprintf("%.0f", x)
	case x >= 10:
		return fmt.Sprintf("%.1f", x)
	case x >= 1:
		return fmt.Sprintf("%.2f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
