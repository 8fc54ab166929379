package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/notify"
)

func newNotify(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "notify TOPIC",
		Short: "Wake who listens to a topic",
		Long: `Wakes all that listen to TOPIC, or consume it, whether there is such a table or not, and
prints nothing. It exits with 0 when they are woken, and at once when nobody listens:
notifications are not kept.

It takes up to a second: one of those who listen keeps the gate for all of them, and
finds who wants to notify when it looks, once a second if nothing happens (its --look).
On MySQL with gtid_mode=ON, if TOPIC is a table, it looks at each commit, and else each
45 s: notify makes one, if the account may SELECT, INSERT and UPDATE mqnotify_flag.
A program that notifies often stays connected, and need not be found each time: in Go,
notify.Gate.`,
		Example:           `  mqnotify notify reload`,
		Args:              oneName("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.notify(cmd.Context(), args[0])
		},
	}
}

func (a *app) notify(ctx context.Context, topic string) error {
	if err := ident.Check(topic); err != nil {
		return err
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	err = notify.Notify(ctx, db, topic)
	if err != nil && ctx.Err() != nil {
		return fmt.Errorf("nobody was woken yet: %w", context.Cause(ctx))
	}
	return err
}
