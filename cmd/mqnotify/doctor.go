package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/doctor"
	"github.com/mqnotify/mqnotify/internal/dsn"
	"github.com/mqnotify/mqnotify/internal/ident"
)

type doctorOptions struct {
	json    bool
	timeout time.Duration
}

func newDoctor(a *app) *cobra.Command {
	var o doctorOptions
	cmd := &cobra.Command{
		Use:   "doctor [TOPIC...]",
		Short: "Check whether the server, the account and each TOPIC meet mqnotify's needs",
		Long: `Connects, checks the server, the account's privileges and each TOPIC's table, and prints a line
for each finding: ok, a warning (something works less well, or not in every use) or a problem
(something does not work), with its remedy. It changes nothing. It exits with 1 if there is a
problem, and with 0 if there are only warnings.`,
		Example: `  mqnotify doctor
  mqnotify doctor orders invoices
  mqnotify doctor --json orders | jq -r 'select(.level != "ok").text'`,
		RunE: func(cmd *cobra.Command, topics []string) error {
			return a.doctor(cmd.Context(), o, topics)
		},
	}
	cmd.Flags().BoolVar(&o.json, "json", false, "print a JSON object for each finding")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 10*time.Second, "how long the server may take to answer a check")
	return cmd
}

func (a *app) doctor(ctx context.Context, o doctorOptions, topics []string) error {
	if o.timeout <= 0 {
		return usagef("--timeout %v: more than 0", o.timeout)
	}
	for _, topic := range topics {
		if err := ident.Check(topic); err != nil {
			return err
		}
	}
	config, err := a.config()
	if err != nil {
		return err
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	core.IgnoreVersion(db)
	show := showFinding
	if o.json {
		show = showJSON
	}
	count := map[doctor.Level]int{}
	for r := range doctor.Examine(ctx, db, doctor.Options{Topics: topics, Timeout: o.timeout, Unverified: dsn.Unverified(config)}) {
		count[r.Level]++
		if err := show(a.out, r); err != nil {
			return ignoreBrokenPipe(err)
		}
	}
	if ctx.Err() != nil {
		return fmt.Errorf("doctor was interrupted before the last check: %w", context.Cause(ctx))
	}
	if !o.json {
		hint := ""
		if len(topics) == 0 && count[doctor.Problem] == 0 {
			hint = "; to check tables too: mqnotify doctor TOPIC..."
		}
		summary := fmt.Sprintf("%d ok, %s, %s%s\n", count[doctor.OK],
			several(count[doctor.Warning], "warning"), several(count[doctor.Problem], "problem"), hint)
		if err := writeAll(a.out, summary); err != nil {
			return ignoreBrokenPipe(err)
		}
	}
	if n := count[doctor.Problem]; n > 0 {
		return fmt.Errorf("doctor found %s", several(n, "problem"))
	}
	return nil
}

// showFinding writes a finding as text: a line, and a second line with the remedy.
func showFinding(out io.Writer, r doctor.Result) error {
	what := r.Check
	if r.Topic != "" {
		what = r.Topic + ": " + what
	}
	text := fmt.Sprintf("%-8s %s: %s\n", r.Level, harmless(what), harmless(r.Text))
	if r.Remedy != "" {
		text += fmt.Sprintf("%-8s -> %s\n", "", harmless(r.Remedy))
	}
	return writeAll(out, text)
}

func showJSON(out io.Writer, r doctor.Result) error {
	line, err := toJSON(r)
	if err != nil {
		return err
	}
	return writeAll(out, line+"\n")
}

// harmless replaces every character that is not printable. A table's name may contain line breaks and control characters,
// which could move the terminal's cursor or look like another finding.
func harmless(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}

func several(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
