package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

func newNotify(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "notify NAME [PAYLOAD]",
		Short: "Send a notification to all processes that listen to a name",
		Long: `Stores a notification for NAME, any text, with a PAYLOAD of at most 8000 bytes. Every process
that listens to NAME receives it; a process that begins to listen later does not. The exit code
is 0 when the notification is stored, whether or not a process listens.

Any program can send one, also inside a transaction:
INSERT INTO mqnotify_notification (name, payload) VALUES ('reload', 'prices').`,
		Example: `  mqnotify notify reload
  mqnotify notify orders '{"order": 7}'`,
		Args: nameAndPayload,
		RunE: func(cmd *cobra.Command, args []string) error {
			payload := ""
			if len(args) > 1 {
				payload = args[1]
			}
			return a.notify(cmd.Context(), args[0], payload)
		},
	}
}

// nameAndPayload accepts a name and an optional payload.
func nameAndPayload(_ *cobra.Command, args []string) error {
	switch len(args) {
	case 0:
		return errors.New("NAME is missing")
	case 1, 2:
		return nil
	}
	return fmt.Errorf("one PAYLOAD only: %q is a second one", args[2])
}

func (a *app) notify(ctx context.Context, name, payload string) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	longer, release := server.Linger(ctx, publishPatience) // the outcome of an interrupted commit is unknown
	defer release()
	return notify.Notify(longer, db, name, payload)
}
