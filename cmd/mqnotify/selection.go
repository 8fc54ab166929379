package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
)

// modeAuto is the flag's value for an empty consumer.Options.Mode.
const modeAuto = "auto"

// waitModes are the values of --mode.
var waitModes = []string{modeAuto, modeHandshake, "poll"}

// selection has the flags of consume, bridge and tail that select rows and columns of the table, and say how to wait for new rows.
type selection struct {
	idColumn string
	columns  []string
	where    string
	grace    time.Duration
	anyKey   bool
	mode     string
}

func (s *selection) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&s.idColumn, "id-column", "", "read by this `column`, an integer with a unique index; default the AUTO_INCREMENT column\nor the primary key")
	flags.StringSliceVar(&s.columns, "columns", nil, "print rows of only these `columns`, separated by commas")
	flags.StringVar(&s.where, "where", "", "read only the rows that meet this `SQL` condition, which is sent unchanged")
	flags.DurationVar(&s.grace, "grace", time.Minute, "how long a gap in the ids stays open for a transaction that this\n"+
		"account can't see (see grants); rows of transactions that stay open\nfor longer may be LOST")
	flags.StringVar(&s.mode, "mode", modeAuto, "how to wait: auto (for the wake trigger, or by polling if there is none),\n"+
		"handshake (with produce --mode handshake) or poll")
	completeWith(cmd, "mode", waitModes...)
}

// registerAnyKey adds --any-key to a command that refuses, without it, tables of which it could lose rows.
func (s *selection) registerAnyKey(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&s.anyKey, "any-key", false, "also read a table whose key is not AUTO_INCREMENT: rows inserted later with\n"+
		"a smaller key are LOST (use capture to lose none); and a table with keys\n"+
		"of 0 or less, whose rows are skipped")
}

// options validates the flags and converts them to options.
func (s *selection) options(a *app) (consumer.Options, error) {
	options := consumer.Options{Key: s.idColumn, Columns: s.columns, Where: s.where, AcceptAnyKey: s.anyKey, Grace: s.grace, Logger: a.log}
	if s.mode != modeAuto {
		options.Mode = s.mode
	}
	return options, oneOf("mode", s.mode, waitModes...)
}
