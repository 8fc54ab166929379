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
		Short: "Print the counter of a table's one-row flag, and reset the flag",
		Long: `Prints the counter of TABLE's flag: how often the flag was set since its last reset, 0 if it is
not set. Producers set it with produce --set-flag. Triggers of init --trigger set it for writers that
can't be changed.

--reset deletes the flag after reading it. Reset the flag before you read the table: then a row
that arrives in between sets the flag again. A flag that is reset serves one reader. Several
readers compare the counter with the value that they saw last.`,
		Example: `  mqnotify flag orders
  while sleep 1; do [ "$(mqnotify flag --reset orders)" = 0 ] || ./read-orders; done`,
		Args: oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			counter, err := a.flag(cmd.Context(), args[0], reset)
			if err != nil {
				return err
			}
			return ignoreBrokenPipe(writeAll(a.out, fmt.Sprintln(counter)))
		},
	}
	cmd.Flags().BoolVar(&reset, "reset", false, "delete the flag after reading it")
	return cmd
}

func (a *app) flag(ctx context.Context, name string, reset bool) (counter uint64, err error) {
	db, err := a.open()
	if err != nil {
		return 0, err
	}
	defer closeDB(db)
	t, err := table.Describe(ctx, db.Pool(), db.Name(), name) // a mistyped name would have a flag that is never set
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
	if was && counter == 0 { // the flag was set between Read and Reset
		counter = 1
	}
	return counter, err
}
