package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

func newKeeper(a *app) *cobra.Command {
	var l looks
	cmd := &cobra.Command{
		Use:   "keeper TOPIC...",
		Short: "Keep the gates of topics, so that no consumer or producer has to",
		Long: `Keeps the gate of each TOPIC until Ctrl-C: it looks for rows that anybody inserts, and
wakes all that wait for them. One of the consumers or producers does this beside its
work. So a keeper of its own is needed only where none can, since their accounts may
not SELECT from the table; and it is of use where they come and go, or to choose in
one place how often to look.

It takes the gate over from a consumer, within a second, and stands by while a
producer or another keeper has it. Run two, and one may fail.

The time between two looks, a statement each, grows from --look-min to --look while no
row comes: a row that nobody announces is seen that late. What mqnotify publishes is
announced. On MySQL with gtid_mode=ON every commit is, and else it looks each 45 s.`,
		Example: `  mqnotify keeper orders invoices
  mqnotify keeper orders --look 50ms`,
		Args:              someNames("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, topics []string) error {
			if cmd.Flags().Changed("look-min") && l.least > l.most {
				return usagef("--look-min %v: --look is less, %v", l.least, l.most)
			}
			return a.keep(cmd.Context(), l, topics)
		},
	}
	cmd.Flags().DurationVar(&l.least, "look-min", leastLook, "the shortest time between two looks")
	cmd.Flags().DurationVar(&l.most, "look", mostLook, "the longest time between two looks")
	completeNothing(cmd, "look-min", "look")
	return cmd
}

func (a *app) keep(ctx context.Context, l looks, topics []string) error {
	options, err := l.gate()
	if err != nil {
		return err
	}
	for _, topic := range topics {
		if err := ident.Check(topic); err != nil {
			return err
		}
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	options.Logger = a.log
	names := map[string]bool{} // each once
	for _, topic := range topics {
		name, err := a.keepable(ctx, db, topic)
		if err != nil {
			return err
		}
		names[name] = true
	}
	keeping, ctx := errgroup.WithContext(ctx)
	for name := range names {
		keeping.Go(func() error {
			gate := notify.NewGate(db, name, options)
			defer func() { _ = gate.Close() }()
			return gate.Keep(ctx)
		})
	}
	return keeping.Wait()
}

// keepable returns the name of a topic's table, which this account may look at.
func (a *app) keepable(ctx context.Context, db *notify.DB, topic string) (string, error) {
	t, err := table.Describe(ctx, db.Pool(), db.Name(), topic)
	switch {
	case err != nil:
		return "", err
	case t.IsView:
		return "", fmt.Errorf("%s is a view: name the table behind it: %w", t, consumer.ErrView)
	}
	if _, err := db.Pool().ExecContext(ctx, "SELECT 1 FROM "+ident.Quote(t.Name)+" WHERE FALSE"); err != nil {
		return "", fmt.Errorf("look at %s: %w", t, err)
	}
	if key, err := t.KeyColumn(""); err != nil || !t.CheapHead(key.Name) {
		a.log.WarnContext(ctx, "the table has no increasing integer key with an index: rows are not seen, only its flag is", "topic", t.Name)
	}
	return t.Name, nil
}
