package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
)

// orderArrival is the value of --order without consumer.Options.Strict.
const orderArrival = "arrival"

type tailOptions struct {
	selection
	rows   int
	follow bool
	order  string
}

func newTail(a *app) *cobra.Command {
	var o tailOptions
	cmd := &cobra.Command{
		Use:   "tail TABLE",
		Short: "Print the newest rows of any table, and with -f new ones as they arrive",
		Long: `Prints the newest rows of TABLE in the order of their ids, each as a JSON object. With -f it waits
for new rows, as consume does, and prints them too. It stores nothing.

Integers keep all 64 bits, DECIMAL is a string, DATETIME and TIMESTAMP are RFC 3339 in UTC, JSON is
embedded, BINARY and BLOB are base64, NULL is null. Rows of a message table look as in consume.

A row with a smaller id that commits late is printed at its commit; with --order strict the rows
after it wait for it. If the table's key is not AUTO_INCREMENT, -f warns and misses rows that are
inserted later with a smaller key.`,
		Example: `  mqnotify tail orders
  mqnotify tail -f -n 0 orders | jq .status
  mqnotify tail orders -n 100 --columns id,status --where "status <> 'done'"`,
		Args: oneName("TABLE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !o.follow && cmd.Flags().Changed("mode") {
				return usagef("--mode is for waiting: give -f too")
			}
			return a.tail(cmd.Context(), o, args[0])
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&o.rows, "rows", "n", 10, "begin with this many of the newest rows")
	flags.BoolVarP(&o.follow, "follow", "f", false, "wait for new rows and print them")
	flags.StringVar(&o.order, "order", orderArrival, "arrival, or strict for the order of the ids")
	o.selection.register(cmd)
	o.anyKey = true // tail stores no offset, and warns
	completeWith(cmd, "order", orderArrival, "strict")
	return cmd
}

func (a *app) tail(ctx context.Context, o tailOptions, name string) error {
	if o.rows < 0 {
		return usagef("-n %d: 0 or more", o.rows)
	}
	if err := oneOf("order", o.order, orderArrival, "strict"); err != nil {
		return err
	}
	options, err := o.options(a)
	if err != nil {
		return err
	}
	options.From, options.StopAtEnd = fmt.Sprintf("last %d", o.rows), !o.follow
	options.MaxAttempts, options.Strict = -1, o.order != orderArrival
	return a.follow(ctx, name, options, a.printing(printJSON))
}
