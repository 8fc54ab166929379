package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

func newFlag(a *app) *cobra.Command {
	var reset bool
	cmd := &cobra.Command{
		Use:   "flag TABLE",
		Short: "Print a table's one-row flag, and reset it",
		Long: `Prints the counter of TABLE's flag: how often it was set since it was reset, 0 for
not at all. Producers set it (produce --flag), and so do triggers, for writers that
can't be changed (init --trigger).

--reset takes the flag away after reading it. Reset it before you read the table: what
comes in between then sets it again. A flag that is reset serves one reader only; the
others compare the counter with the one they saw last.`,
		Example: `  mqnotify flag orders
  while sleep 1; do [ "$(mqnotify flag --reset orders)" = 0 ] || ./read-orders; done`,
		Args:              oneName("TABLE"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			counter, err := a.flag(cmd.Context(), args[0], reset)
			if err != nil {
				return err
			}
			return ignoreBrokenPipe(writeAll(a.out, fmt.Sprintln(counter)))
		},
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "take the flag away after reading it")
	return cmd
}

func (a *app) flag(ctx context.Context, name string, reset bool) (counter uint64, err error) {
	db, err := a.open()
	if err != nil {
		return 0, err
	}
	defer closeDB(db)
	t, err := table.Describe(ctx, db.Pool(), db.Name(), name) // the flag of a table that is not there is never set
	if err != nil {
		return 0, err
	}
	flag := notify.Flag{Topic: t.Name}
	counter, err = flag.Read(ctx, db.Pool())
	if server.Is(err, server.ErrNoSuchTable) {
		return 0, notify.ErrNoState
	}
	if err != nil || !reset {
		return counter, err
	}
	was, err := flag.Reset(ctx, db.Pool())
	if was && counter == 0 { // set between the two
		counter = 1
	}
	return counter, err
}
