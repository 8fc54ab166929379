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
		Long: `Keeps the gate of each TOPIC until Ctrl-C: it looks for rows that were inserted by
whomever, and wakes all that wait for them. A consumer or producer does the same
beside its work, so a keeper of its own is needed only when none of them can (their
accounts may not SELECT from the table), and of use where they come and go, or to
choose in one place how often to look.

It takes a gate over from a consumer, within a second, and stands by while a producer
or another keeper has it. Run two, and one can fail.

A row that a writer inserts without ringing is seen at the next look: --look-min after
the last such row at the earliest, and --look after any time at the latest. Each look
is one statement. On MySQL with gtid_mode=ON a commit is seen at once.`,
		Example: `  mqnotify keeper orders invoices
  mqnotify keeper orders --look 50ms`,
		Args:              someNames("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, topics []string) error {
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
	if l.least > l.most {
		return usagef("--look-min %v: --look is %v", l.least, l.most)
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
