package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/wake"
)

func newWake(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "wake COMMAND",
		Short: "Make the triggers that wake listeners at every INSERT, by any program",
		Long: `Makes, shows and removes wake triggers. A table's wake trigger wakes its consumers at the COMMIT of
every INSERT by any program: PHP, Python, the mysql client. These programs need no privilege but
INSERT.

mqnotify init makes wake triggers on message tables, and on the tables of notifications, tasks and
ring buffers. Without one, listeners find rows of other programs by polling, up to a second later.`,
		Example: `  mqnotify wake install orders invoices
  mqnotify wake status
  mqnotify wake remove invoices`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("give one of install, status or remove") },
	}
	cmd.AddCommand(newWakeInstall(a), newWakeStatus(a), newWakeRemove(a))
	return cmd
}

func newWakeInstall(a *app) *cobra.Command {
	o := wake.Options{}
	cmd := &cobra.Command{
		Use:   "install TABLE...",
		Short: "Make the wake triggers of tables",
		Long: `Makes a trigger on each TABLE, and the routines mqnotify_wake and mqnotify_wake_tables if they do
not exist. The account needs TRIGGER on TABLE, and CREATE ROUTINE and ALTER ROUTINE on the database.
Don't drop the account: triggers run with the rights of the account that made them. A server that
writes a binary log also needs SUPER, or log_bin_trust_function_creators=1.

Listeners of the same account need nothing else. Listeners of another account need EXECUTE on the
two routines, and the account that runs this command needs CONNECTION_ADMIN (MySQL) or CONNECTION
ADMIN (MariaDB).

The server makes a trigger only while no transaction uses TABLE. install tries for 1 s at a time, in
which new transactions on TABLE wait, until --patience is over.`,
		Example: `  mqnotify wake install orders
  mqnotify wake install stock --on insert,update,delete   # for mqnotify.Await on its columns`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, tables []string) error {
			for _, event := range o.Events {
				if err := oneOf("on", strings.ToLower(event), "insert", "update", "delete"); err != nil {
					return err
				}
			}
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			o.Logger = a.log
			return wake.Install(cmd.Context(), db, o, tables...)
		},
	}
	cmd.Flags().StringSliceVar(&o.Events, "on", []string{"insert"}, "the changes that wake listeners: insert, update, delete, separated by commas")
	addPatience(cmd, &o.Patience)
	completeWith(cmd, "on", "insert", "update", "delete")
	return cmd
}

func newWakeStatus(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the wake triggers, and whether they work",
		Long: `Prints the wake triggers that this account may see: those of the tables on which it has TRIGGER. It
exits with 1 if one of them does not work. mqnotify wake install repairs it.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.wakeStatus(cmd.Context(), asJSON)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print a line of JSON for each trigger")
	return cmd
}

func (a *app) wakeStatus(ctx context.Context, asJSON bool) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	states, err := wake.Status(ctx, db)
	if err != nil {
		return err
	}
	if err := ignoreBrokenPipe(writeList(a.out, asJSON, states, shownWake, wakeTable)); err != nil {
		return err
	}
	for _, s := range states {
		switch {
		case s.WritesFail:
			return fmt.Errorf("the trigger %s makes writes to %s fail: run mqnotify wake install %s --on %s", s.Trigger, s.Table, s.Table, s.Event)
		case s.Problem != "":
			return fmt.Errorf("the trigger %s wakes no listener: run mqnotify wake install %s --on %s", s.Trigger, s.Table, s.Event)
		}
	}
	return nil
}

// The server shows no trigger of a table on which the account has no TRIGGER privilege, and does not say so.
const noWakeTrigger = "no wake trigger, or only on tables where this account has no TRIGGER privilege"

func wakeTable(states []wake.State) string {
	if len(states) == 0 {
		return noWakeTrigger + "\n"
	}
	rows := []string{"TABLE\tON\tDEFINER\tSTATE"}
	for _, s := range states {
		state := "ok"
		if s.Problem != "" {
			state = "BROKEN: " + s.Problem
		}
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%s", harmless(s.Table), s.Event, harmless(s.Definer), harmless(state)))
	}
	return aligned(rows)
}

// shownWake returns the state of a trigger in the form of --json.
func shownWake(s wake.State) any {
	return map[string]any{"table": s.Table, "on": s.Event, "trigger": s.Trigger, "definer": s.Definer, "problem": s.Problem}
}

func newWakeRemove(a *app) *cobra.Command {
	var o wake.Options
	cmd := &cobra.Command{
		Use:   "remove TABLE",
		Short: "Drop the wake triggers of TABLE",
		Long: `Drops the wake triggers of TABLE. Its consumers notice it at once and poll from then on: they find
rows of other programs up to a second later.`,
		Example: `  mqnotify wake remove orders`,
		Args:    oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			o.Logger = a.log
			removed, err := wake.Remove(cmd.Context(), db, o, args[0])
			for _, name := range removed {
				a.log.InfoContext(cmd.Context(), "the trigger is dropped", "trigger", name, "table", args[0])
			}
			if err == nil && len(removed) == 0 {
				a.log.InfoContext(cmd.Context(), noWakeTrigger, "table", args[0])
			}
			return err
		},
	}
	addPatience(cmd, &o.Patience)
	return cmd
}
