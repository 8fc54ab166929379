package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

const (
	// listenBound is when listen waits anew although nothing came.
	listenBound = time.Hour
	// commandPatience is how long a command that runs may take after Ctrl-C.
	commandPatience = 30 * time.Second
)

// listenOptions are listen's flags.
type listenOptions struct {
	looks
	limit   int
	json    bool
	atStart bool
}

func newListen(a *app) *cobra.Command {
	var o listenOptions
	cmd := &cobra.Command{
		Use:   "listen TOPIC [flags] [-- COMMAND ARGS...]",
		Short: "Print a line when a topic is notified, or run a command",
		Long: `Waits until somebody notifies TOPIC, prints the time and the topic, and waits for
more, until Ctrl-C or --limit. TOPIC is any name. If it is that of a table, rows that
anybody inserts there are notifications too.

A notification says that something may have happened, and no more: several that come
close together are one, and one may come for nothing, as when the connection was
lost or another process takes the gate over. What came before listen says "listening"
is not told; --at-start wakes once for it.

COMMAND is run at each, with the topic in MQNOTIFY_TOPIC. It is not run twice at a
time: notifications that come meanwhile are one, after it. When it fails, listen says so
and goes on.

Ctrl-C lets the command in hand finish, for 30 s at most.`,
		Example: `  mqnotify listen orders
  mqnotify listen reload --limit 1 && ./read-the-config
  mqnotify listen customers --at-start -- ./sync-customers`,
		Args:              oneNameAndCommand("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.listen(cmd.Context(), o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.limit, "limit", 0, "end after this many notifications; 0 is no limit")
	flags.BoolVar(&o.json, "json", false, "print a JSON object for each, with time and topic")
	flags.BoolVar(&o.atStart, "at-start", false, "wake once at the start, for what came before")
	o.looks.register(cmd)
	completeNothing(cmd, "limit")
	return cmd
}

func (a *app) listen(ctx context.Context, o listenOptions, topic string, args []string) error {
	if err := ident.Check(topic); err != nil {
		return err
	}
	options, err := o.gate()
	switch {
	case err != nil:
		return err
	case o.limit < 0:
		return usagef("--limit %d: 0 or more", o.limit)
	case o.json && len(args) > 0:
		return usagef("--json is for printing, and a command is told the topic alone: leave it out")
	}
	woken := func() error { return a.printWake(o, topic) }
	if len(args) > 0 {
		if _, err := exec.LookPath(args[0]); err != nil {
			return fmt.Errorf("find the command: %w", err)
		}
		woken = func() error { return a.runWake(ctx, topic, args) }
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	options.Logger = a.log
	gate := notify.NewGate(db, topic, options)
	defer func() { _ = gate.Close() }()
	seen, err := gate.Head(ctx)
	if err == nil {
		a.log.InfoContext(ctx, "listening", "topic", topic)
	}
	for n := 0; err == nil && (o.limit == 0 || n < o.limit); {
		now := seen
		if !o.atStart {
			if now, err = gate.Wait(ctx, seen, listenBound); err != nil {
				break
			}
		}
		if now != seen || o.atStart {
			o.atStart = false
			err = woken()
			n++
		}
		seen = now
	}
	if ctx.Err() != nil {
		return nil // how it is stopped
	}
	return ignoreBrokenPipe(err)
}

func (a *app) printWake(o listenOptions, topic string) error {
	now := time.Now().UTC().Format(timeFormat)
	if !o.json {
		return writeAll(a.out, now+" "+topic+"\n")
	}
	line, err := json.Marshal(struct {
		Time  string `json:"time"`
		Topic string `json:"topic"`
	}{now, topic})
	if err != nil {
		return err
	}
	return writeAll(a.out, string(line)+"\n")
}

// runWake runs the command to its end; that it fails is no reason to listen no more.
func (a *app) runWake(ctx context.Context, topic string, args []string) error {
	longer, release := lingering(ctx, commandPatience)
	defer release()
	run := &command{args, killAfter, a}
	if err := run.run(longer, nil, []string{"MQNOTIFY_TOPIC=" + topic}); err != nil {
		a.log.WarnContext(ctx, "the command failed", "error", err)
	}
	return nil
}
