package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
)

// selection is what consume and tail read of a table, and how.
type selection struct {
	idColumn string
	columns  []string
	where    string
	grace    time.Duration
	anyKey   bool
}

func (s *selection) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.idColumn, "id-column", "", "read by this `column`, an integer with a unique index; default the AUTO_INCREMENT column\nor the primary key")
	flags.StringSliceVar(&s.columns, "columns", nil, "print rows of these `columns`, with commas between them")
	flags.StringVar(&s.where, "where", "", "read only the rows that meet this `SQL` condition; it is sent as it is")
	flags.DurationVar(&s.grace, "grace", time.Minute, "how long a gap in the ids may be filled by a transaction that\n"+
		"this account can't see (see grants); one that is open for longer\nmay LOSE its rows here")
	completeNothing(cmd, "id-column", "columns", "where", "grace")
}

// registerAnyKey is for commands that must not lose a row without a word.
func (s *selection) registerAnyKey(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.anyKey, "any-key", false, "read a table though its key is not AUTO_INCREMENT: a row that is inserted\n"+
		"later with a smaller key is LOST (capture has no such loss); and a table\n"+
		"with keys of 0 or less, whose rows are left out")
}

func (s *selection) options(a *app) consumer.Options {
	return consumer.Options{Key: s.idColumn, Columns: s.columns, Where: s.where, AcceptAnyKey: s.anyKey, Grace: s.grace, Logger: a.log}
}
