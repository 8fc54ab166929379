package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/capture"
	"github.com/mqnotify/mqnotify/notify"
)

func newCapture(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "capture COMMAND",
		Short: "Write a message for every change of a table, whichever program makes it",
		Long: `Makes, shows and removes triggers that write a message for every change of a table, in
the writer's own transaction: {"op":"update","table":"orders","old":{...},"new":{...}}.

It needs no binary log and no running process. docs/guide/capture.md describes how each type is
written, what a trigger costs the writer, and which changes fire no trigger.`,
		Example: `  mqnotify capture install orders
  mqnotify consume orders_changes
  mqnotify capture status`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			return usagef("give one of install, snapshot, status, repair or remove")
		},
	}
	cmd.AddCommand(newCaptureInstall(a), newCaptureSnapshot(a), newCaptureStatus(a), newCaptureRepair(a), newCaptureRemove(a))
	return cmd
}

func newCaptureInstall(a *app) *cobra.Command {
	var o capture.Options
	var ops []string
	var printed, snapshot bool
	cmd := &cobra.Command{
		Use:   "install TABLE",
		Short: "Make the triggers, and the topic if it does not exist",
		Long: `Makes a trigger for each of --ops that writes the old and the new row as JSON into the
topic --into. The account needs SELECT and TRIGGER on TABLE and INSERT on the topic. Don't drop
the account: triggers run with the rights of the account that made them. A server with a
binary log also needs SUPER, or log_bin_trust_function_creators=1.

The server makes a trigger only while no transaction uses TABLE. install tries for 2 s at a
time, in which new transactions on TABLE wait, until --patience is over.

With --snapshot the existing rows of TABLE become messages too: see "mqnotify capture
snapshot --help".

If another trigger of the same kind exists on TABLE, install fails and names it. --beside keeps
both.

If TABLE contains a %, it is a pattern of LIKE, and install captures every table that matches.
It skips message tables, mqnotify's own tables and tables that are captured.`,
		Example: `  mqnotify capture install orders
  mqnotify capture install orders --ops update,delete --columns id,status --into order_status
  mqnotify capture install 'shop\_%' --snapshot
  mqnotify capture install orders --print`,
		Args: oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Logger, o.Ops = a.log, nil
			for _, op := range ops {
				o.Ops = append(o.Ops, strings.ToLower(op))
			}
			if len(o.Ops) == 0 {
				return usagef("--ops: insert, update or delete, with commas between them")
			}
			if printed && snapshot {
				return usagef("--print and --snapshot: run mqnotify capture snapshot after the printed SQL")
			}
			return a.captureInstall(cmd.Context(), args[0], o, printed, snapshot)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&ops, "ops", []string{"insert", "update", "delete"}, "the changes, with commas between them")
	flags.StringSliceVar(&o.Columns, "columns", nil, "only these columns, and only updates that change one of them; default all")
	flags.StringSliceVar(&o.Without, "without", nil, "leave these columns out, now and after every repair")
	flags.BoolVar(&o.Tombstones, "tombstones", false, "write a second message for each delete, with the header tombstone and an empty payload")
	flags.StringVar(&o.Into, "into", "", "the `topic` to write into; default TABLE_changes")
	flags.BoolVar(&o.Beside, "beside", false, "keep other triggers for the same change; without it they are an error")
	flags.BoolVar(&printed, "print", false, "write the SQL to stdout and change nothing")
	flags.BoolVar(&snapshot, "snapshot", false, "write the existing rows as messages too")
	addPatience(cmd, &o.Patience)
	completeWith(cmd, "ops", "insert", "update", "delete")
	return cmd
}

func addPatience(cmd *cobra.Command, patience *time.Duration) {
	cmd.Flags().DurationVar(patience, "patience", 30*time.Second, "how long to try while transactions use the table")
}

func (a *app) captureInstall(ctx context.Context, pattern string, o capture.Options, printed, snapshot bool) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	names, err := captureTables(ctx, db, pattern)
	if err != nil {
		return err
	}
	return a.eachTable(ctx, pattern, names, func(name string) error {
		var plan *capture.Plan
		var err error
		if printed {
			plan, err = capture.Prepare(ctx, db, name, o)
		} else {
			plan, err = capture.Install(ctx, db, name, o)
		}
		var exists *capture.TriggerExistsError
		switch {
		case errors.As(err, &exists) && exists.Ours && name != pattern:
			a.log.InfoContext(ctx, "skipped: the table is captured already", "table", name)
			if !snapshot {
				return nil
			}
			// An earlier run may have ended before the snapshot did.
			states, err := capture.Status(ctx, db, name)
			if err != nil || slices.ContainsFunc(states, func(s capture.State) bool { return s.Snapshot != nil && s.Snapshot.Done }) {
				return err
			}
			return a.snapshot(ctx, db, name, capture.SnapshotOptions{Patience: o.Patience})
		case err != nil:
			return err
		}
		if len(plan.Cascades) > 0 {
			a.log.WarnContext(ctx, "a foreign key of the table has ON DELETE or ON UPDATE actions: no trigger fires for the rows that they change, so these changes are not captured",
				"table", plan.Table, "parents", plan.Cascades)
		}
		if slices.Contains([]string{"MyISAM", "Aria", "MEMORY"}, plan.Engine) {
			a.log.WarnContext(ctx, "the table's engine has no transactions: a rollback removes the message of a change, but not the change",
				"table", plan.Table, "engine", plan.Engine, "remedy", "ALTER TABLE ... ENGINE=InnoDB")
		}
		if printed {
			return ignoreBrokenPipe(writeAll(a.out, plan.Script))
		}
		for _, t := range plan.Triggers {
			a.log.InfoContext(ctx, "the trigger is ready", "trigger", t, "table", plan.Table, "into", plan.Topic)
		}
		if snapshot {
			return a.snapshot(ctx, db, plan.Table, capture.SnapshotOptions{Patience: o.Patience})
		}
		return nil
	})
}

func newCaptureStatus(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status [TABLE]",
		Short: "Show which changes of TABLE, or of all tables, are captured",
		Long: `Prints the capture triggers that this account may see. It compares the columns of the table
with those that each trigger was made for, and exits with 1 if

  writes fail                 a captured column or the topic does not exist any more
  values are written wrong    a captured column has another type, or the primary key was changed
  changes are not captured    the table was renamed, or swapped for another

"mqnotify capture repair" repairs all of these except a missing topic. status also prints the
columns that are not captured, because they were left out or added later, and unfinished snapshots.`,
		Example: `  mqnotify capture status
  mqnotify capture status orders --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := ""
			if len(args) == 1 {
				name = args[0]
			}
			return a.captureStatus(cmd.Context(), name, asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each trigger")
	return cmd
}

func (a *app) captureStatus(ctx context.Context, name string, asJSON bool) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	states, err := capture.Status(ctx, db, name)
	if err != nil {
		return err
	}
	if err := ignoreBrokenPipe(writeList(a.out, asJSON, states, shownCapture, captureTable)); err != nil {
		return err
	}
	if name != "" && len(states) == 0 {
		return fmt.Errorf("%s: %w", name, capture.ErrNotCaptured)
	}
	for _, s := range states {
		switch {
		case s.NoTopic:
			// Prepare knows what is wrong with a topic that exists.
			if _, err := capture.Prepare(ctx, db, s.Table, capture.Options{Into: s.Topic}); errors.Is(err, notify.ErrNotTopic) {
				return fmt.Errorf("writes that fire %s can fail: %w", s.Trigger, err)
			}
			return fmt.Errorf("writes that fire %s fail, unless the topic %s exists and this account may not see it: make the topic (mqnotify init), or remove the capture", s.Trigger, s.Topic)
		case s.Broken:
			return fmt.Errorf("writes that fire %s fail: run mqnotify capture repair %s", s.Trigger, s.Table)
		case s.Moved:
			return fmt.Errorf("%s is on the table %s now: after a swap run mqnotify capture repair %s, after a rename mqnotify capture repair %s", s.Trigger, s.Table, s.MadeFor, s.Table)
		case s.Stale:
			return fmt.Errorf("%s writes values of changed columns in the wrong form: run mqnotify capture repair %s", s.Trigger, s.Table)
		}
	}
	return nil
}

// The server hides the triggers of tables on which the account has no TRIGGER privilege, and does not say so.
const nothingCaptured = "no table is captured, or only tables on which this account has no TRIGGER privilege"

func captureTable(states []capture.State) string {
	if len(states) == 0 {
		return nothingCaptured + "\n"
	}
	rows := []string{"TABLE\tON\tINTO\tCOLUMNS\tSTATE"}
	for _, s := range states {
		state := "ok"
		switch {
		case s.NoTopic:
			state = "BROKEN: no topic " + s.Topic + " that stores every row"
		case len(s.Gone) > 0:
			state = "BROKEN: no column " + strings.Join(s.Gone, ", ")
		case s.Moved:
			state = "MOVED: made for " + s.MadeFor
		case len(s.Changed) > 0:
			state = "STALE: " + strings.Join(s.Changed, "; ")
		case s.Reordered && len(s.Missed) > 0:
			state = "in the earlier order, without " + strings.Join(s.Missed, ", ")
		case s.Reordered:
			state = "in the earlier order"
		case len(s.Missed) > 0:
			state = "without " + strings.Join(s.Missed, ", ")
		}
		if s.Snapshot != nil && !s.Snapshot.Done {
			state += fmt.Sprintf("; snapshot unfinished, %d rows", s.Snapshot.Rows)
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%s", harmless(s.Table), s.Op, harmless(s.Topic), len(s.Columns), harmless(state)))
	}
	return aligned(rows)
}

// shownCapture returns the state of a trigger in the form of --json. The snapshot is null if there was none.
func shownCapture(s capture.State) any {
	var snapshot map[string]any
	if p := s.Snapshot; p != nil {
		snapshot = map[string]any{"from": p.From, "rows": p.Rows, "done": p.Done}
	}
	return map[string]any{
		"table": s.Table, "op": s.Op, "topic": s.Topic, "trigger": s.Trigger, "definer": s.Definer,
		"columns": s.Columns, "missed": orNone(s.Missed), "gone": orNone(s.Gone), "no_topic": s.NoTopic, "broken": s.Broken,
		"changed": orNone(s.Changed), "reordered": s.Reordered, "made_for": s.MadeFor, "stale": s.Stale,
		"snapshot": snapshot,
	}
}

// orNone replaces nil with an empty list, which JSON writes as [] and not as null.
func orNone(names []string) []string {
	if names == nil {
		return []string{}
	}
	return names
}

func newCaptureRepair(a *app) *cobra.Command {
	var o capture.Options
	cmd := &cobra.Command{
		Use:   "repair TABLE",
		Short: "Make the capture triggers of TABLE again, for its current columns",
		Long: `Makes the capture triggers again after an ALTER TABLE. It also moves back triggers that went
with the old table when TABLE was renamed or swapped (pt-online-schema-change, gh-ost). Each
trigger keeps the options of install.

To add a column or change a type: alter the table, then repair. To drop or rename a column:
run repair --without COLUMN, alter the table, then repair. In this order no write fails, and no
value is written in a wrong form. To change DATETIME to TIMESTAMP or back, do the same, but end
with repair --without '', which captures the column again.

repair holds a lock on TABLE while it changes the triggers, so that each change is captured
once. It tries to lock for 2 s at a time, until --patience is over. For the lock the account
needs LOCK TABLES on the database, in addition to the privileges for install.`,
		Example: `  mqnotify capture repair orders
  mqnotify capture repair orders --without paid`,
		Args: oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			o.Logger = a.log
			made, err := capture.Repair(cmd.Context(), db, args[0], o)
			if err != nil {
				return err
			}
			for _, t := range made {
				a.log.InfoContext(cmd.Context(), "the trigger is ready", "trigger", t, "table", args[0])
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&o.Without, "without", nil, "leave these columns out, instead of those that were left out before; '' leaves out none")
	addPatience(cmd, &o.Patience)
	return cmd
}

func newCaptureRemove(a *app) *cobra.Command {
	var o capture.Options
	cmd := &cobra.Command{
		Use:   "remove TABLE",
		Short: "Drop the capture triggers of TABLE; its topic stays",
		Long: `Drops the capture triggers of TABLE, also if a rename moved them to another table. The topic and
its messages stay.`,
		Example: `  mqnotify capture remove orders`,
		Args:    oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			o.Logger = a.log
			removed, err := capture.Remove(cmd.Context(), db, args[0], o)
			for _, name := range removed {
				a.log.InfoContext(cmd.Context(), "the trigger is dropped", "trigger", name, "table", args[0])
			}
			if err == nil && len(removed) == 0 {
				a.log.InfoContext(cmd.Context(), nothingCaptured, "table", args[0])
			}
			return err
		},
	}
	addPatience(cmd, &o.Patience)
	return cmd
}
