package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/supervisor"
	"github.com/mqnotify/mqnotify/notify"
)

// onceOptions are once's flags.
type onceOptions struct {
	every  time.Duration
	reset  bool
	notRun int
}

func newOnce(a *app) *cobra.Command {
	var o onceOptions
	cmd := &cobra.Command{
		Use:   "once KEY [flags] -- COMMAND ARGS...",
		Short: "Run a command once, whichever machine asks first",
		Long: `Runs COMMAND if nobody has run one for KEY before, on any machine; otherwise it exits with
0, or the code of -E, at once. With --every, if nobody has within that time, by the
server's clock: for a task that many machines schedule. KEY is 1 to 255 characters.

At most once: KEY is used up before COMMAND runs, and stays so if it fails, or if the
machine dies. --reset makes KEY new. The exit code is that of COMMAND (128 and the
signal's number if a signal ended it), which gets mqnotify's stdin and signals; it can't
read from a terminal: that would stop it. When mqnotify is killed, all that COMMAND has
started is ended, as with lock.

It needs the tables that init makes.`,
		Example: `  mqnotify once migrate-2026-11 -- ./migrate
  mqnotify once nightly --every 23h -- ./report  # in the crontab of all machines
  mqnotify once migrate-2026-11 --reset`,
		Args:              oneNameAndCommand("KEY"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			periodic := cmd.Flags().Changed("every")
			switch {
			case o.notRun < 0 || o.notRun > 255:
				return usagef("-E %d: 0 to 255", o.notRun)
			case o.reset && (periodic || len(args) > 1):
				return usagef("--reset makes KEY new and runs nothing: give neither --every nor a command")
			case o.reset:
				return a.resetOnce(cmd.Context(), args[0])
			}
			if err := findCommand(args[1:]); err != nil {
				return err
			}
			return a.once(cmd.Context(), o, periodic, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&o.every, "every", 0, "run it again when this long has passed since it was last run")
	flags.BoolVar(&o.reset, "reset", false, "make KEY new, and run nothing")
	flags.IntVarP(&o.notRun, "conflict-exit-code", "E", exitDone, "the exit `code` when the command is not run")
	completeNothing(cmd, "every", "conflict-exit-code")
	return cmd
}

func (a *app) once(ctx context.Context, o onceOptions, periodic bool, key string, args []string) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	through, err := o.try(ctx, db, periodic, key)
	if err != nil {
		return err
	}
	if !through {
		a.log.InfoContext(ctx, "it was done already: the command is not run", "key", key)
		if o.notRun != exitDone {
			return &exitError{code: o.notRun}
		}
		return nil
	}
	return a.guarded(ctx, supervisor.New(args, killAfter), []string{"MQNOTIFY_KEY=" + key}, nil)
}

func (o onceOptions) try(ctx context.Context, db *notify.DB, periodic bool, key string) (bool, error) {
	if !periodic {
		return guard.NewOnce(db).Try(ctx, key)
	}
	every, err := guard.NewEvery(db, key, o.every)
	if err != nil {
		return false, err
	}
	return every.Try(ctx)
}

func (a *app) resetOnce(ctx context.Context, key string) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	done, err := guard.NewOnce(db).Reset(ctx, key)
	if err == nil && !done {
		a.log.WarnContext(ctx, "nobody has done it: nothing to reset", "key", key)
	}
	return err
}
