package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/bench"
)

type benchOptions struct {
	bench.Options
	json bool
	plot string
}

func newBench(a *app) *cobra.Command {
	var o benchOptions
	cmd := &cobra.Command{
		Use:   "bench [" + strings.Join(bench.Suites, "|") + "]...",
		Short: "Measure mqnotify on this server, compared with bare SQL statements",
		Long: `Runs the named suites, or all. In the same rounds each suite also runs bare SQL statements that
do the same work: they are its floor.

  latency      the time from the call of Publish, and from its return, to the handler in another process
  throughput   rows published per second, and rows read per second from a backlog
  idle         statements per second that an idle consumer and an idle producer cause, with the wake
               trigger and with polling, and their latency. Statements of other clients are
               measured before and subtracted
  fanout       the time from an INSERT until the last of many listeners has received it
  queue        the time from Enqueue to an idle worker's handler, and tasks per second of four workers
  writers      INSERTs per second of as many writers as the server can serve, with a wake trigger and
               with an empty trigger, and the longest INSERT

The column ratio is the median divided by the floor's median; 1 is as fast as bare statements. The
load of other clients on the server is part of every figure.

bench makes tables in the database and drops them at the end. The tables that init makes, and the
routines that wake install makes, stay. The account needs the privileges that mqnotify grants
--role admin prints.`,
		Example: `  mqnotify bench
  mqnotify bench latency --rounds 1000 --plot latency.svg
  mqnotify bench throughput idle --json`,
		ValidArgs: bench.Suites,
		Args:      cobra.OnlyValidArgs,
		RunE:      func(cmd *cobra.Command, args []string) error { return a.bench(cmd.Context(), o, args) },
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Rounds, "rounds", 200, "rounds of latency, fanout and queue; a tenth as many run before, to warm up")
	flags.IntVar(&o.Rows, "rows", 100_000, "rows of throughput; queue has a tenth as many tasks")
	flags.IntVar(&o.Listeners, "listeners", 50, "listeners of fanout, with five connections each")
	flags.IntVar(&o.Writers, "writers", 64, "the largest number of writers of writers")
	flags.DurationVar(&o.Window, "for", 10*time.Second, "how long each of the five windows of idle is, in which it counts statements;\nan idle listener sends about five statements a minute, which a short window misses")
	flags.BoolVar(&o.json, "json", false, "print a JSON object for each suite")
	flags.StringVar(&o.plot, "plot", "", "draw the distributions of the times, and latency against idle statements,\ninto this `file` (.svg, .png, .pdf)")
	completeFiles(cmd, "plot")
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
	if o.plot != "" {
		if err := bench.CheckPlot(o.plot); err != nil {
			return usagef("--plot: %w", err)
		}
	}
	config, err := a.databaseConfig()
	if err != nil {
		return err
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
			a.log.WarnContext(ctx, "listeners of this account can't be woken: the figures are those of polling", "why", why)
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
		return writeJSON(a.out, struct {
			Suite   string         `json:"suite"`
			Figures []bench.Figure `json:"figures"`
		}{suite, figures})
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

// number formats x with three significant digits.
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
