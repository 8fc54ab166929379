package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/guard"
	"github.com/mqnotify/mqnotify/internal/supervisor"
	"github.com/mqnotify/mqnotify/notify"
)

// periods are the calendar periods of --every.
var periods = []string{"hour", "day", "week", "month"}

type onceOptions struct {
	every  string // hour, day, week, month, or a duration
	zone   string
	reset  bool
	notRun int
}

func newOnce(a *app) *cobra.Command {
	var o onceOptions
	cmd := &cobra.Command{
		Use:   "once KEY [flags] -- COMMAND ARGS...",
		Short: "Run a command once, whichever machine asks first",
		Long: `Runs COMMAND unless once has already run a command for KEY, on any machine. Otherwise it exits at
once with 0, or the code of -E. KEY is any text of 1 to 255 characters.

With --every hour, day, week (from Monday) or month, COMMAND runs once in each calendar period: for
a task in the crontabs of many machines. The period is that of the server's clock, in the time zone
--tz: give the crontab's zone. Schedule the task some seconds or more away from the start of a
period.

--every may also be a duration, counted from the last run. Give less than the schedule's interval,
so that a run that is a second early is not skipped. Don't give 23h for a daily crontab in local
time: when clocks go forward, two runs are exactly 23 h apart.

COMMAND runs at most once, because KEY is used up before COMMAND runs, and stays used if COMMAND
fails or the machine dies. --reset makes KEY new.

The exit code is that of COMMAND (128 plus the signal's number if a signal ended it). COMMAND gets
mqnotify's stdin and signals; it can't read from a terminal, which would stop it. When mqnotify is
killed, all that COMMAND has started is ended, as with mqnotify lock.

once needs the tables that init makes.`,
		Example: `  mqnotify once migrate-2026-11 -- ./migrate
  mqnotify once nightly --every day --tz Europe/Berlin -- ./report  # in all crontabs
  mqnotify once often --every 9m -- ./report
  mqnotify once migrate-2026-11 --reset`,
		Args: oneNameAndCommand("KEY"),
		RunE: func(cmd *cobra.Command, args []string) error {
			periodic := cmd.Flags().Changed("every")
			switch {
			case o.notRun < 0 || o.notRun > 255:
				return usagef("-E %d: 0 to 255", o.notRun)
			case o.zone != "" && !slices.Contains(periods, o.every):
				return usagef("--tz is for calendar periods: give --every hour, day, week or month too")
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
	flags.StringVar(&o.every, "every", "", "run COMMAND once in each hour, day, week or month, or again when this long has\npassed since its last run (such as 9m)")
	flags.StringVar(&o.zone, "tz", "", "the time `zone` of the periods, such as Europe/Berlin (default this machine's)")
	flags.BoolVar(&o.reset, "reset", false, "make KEY new, and run nothing")
	flags.IntVarP(&o.notRun, "conflict-exit-code", "E", exitDone, "the exit `code` if COMMAND is not run")
	a.registerInherit(cmd, "COMMAND")
	completeWith(cmd, "every", periods...)
	return cmd
}

func (a *app) once(ctx context.Context, o onceOptions, periodic bool, key string, args []string) error {
	try, err := o.parse(periodic, key)
	if err != nil {
		return err
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	first, err := try(ctx, db)
	if err != nil {
		return err
	}
	if !first {
		a.log.InfoContext(ctx, "the key was done already: the command is not run", "key", key)
		if o.notRun != exitDone {
			return &exitError{code: o.notRun}
		}
		return nil
	}
	return a.guarded(ctx, supervisor.New(args, killAfter), []string{"MQNOTIFY_KEY=" + key}, nil)
}

// parse returns the function that reports whether this call is the first for the key, or the first in the period.
func (o onceOptions) parse(periodic bool, key string) (try func(context.Context, *notify.DB) (bool, error), err error) {
	if !periodic {
		return func(ctx context.Context, db *notify.DB) (bool, error) {
			once, err := guard.NewOnce(db, guard.OnceTable{})
			if err != nil {
				return false, err
			}
			return once.Try(ctx, key)
		}, nil
	}
	every := guard.Every{Key: key}
	if slices.Contains(periods, o.every) {
		every.Period, every.Zone = o.every, time.Local
		if o.zone != "" {
			if every.Zone, err = time.LoadLocation(o.zone); err != nil {
				return nil, usagef("--tz: %w", err)
			}
		}
	} else if every.Interval, err = time.ParseDuration(o.every); err != nil {
		return nil, usagef("--every %q: write hour, day, week, month, or a duration such as 9m", o.every)
	}
	return every.Try, nil
}

func (a *app) resetOnce(ctx context.Context, key string) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	once, err := guard.NewOnce(db, guard.OnceTable{})
	if err != nil {
		return err
	}
	done, err := once.Reset(ctx, key)
	if err == nil && !done {
		a.log.WarnContext(ctx, "the key was not done: nothing to reset", "key", key)
	}
	return err
}
