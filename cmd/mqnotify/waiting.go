package main

import (
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
)

// modeAuto is the flag's value for an empty consumer.Options.Mode.
const modeAuto = "auto"

// waitModes are the values of --mode.
var waitModes = []string{modeAuto, modeHandshake, "poll"}

// waiting has the flag --mode of consume, bridge and tail: how they wait for new rows.
type waiting struct{ mode string }

func (w *waiting) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.mode, "mode", modeAuto, "how to wait: auto (for the wake trigger, or by polling if there is none),\n"+
		"handshake (with produce --mode handshake) or poll")
	completeWith(cmd, "mode", waitModes...)
}

// into validates the flag and copies it into the options.
func (w *waiting) into(options *consumer.Options) error {
	if err := oneOf("mode", w.mode, waitModes...); err != nil {
		return err
	}
	if w.mode != modeAuto {
		options.Mode = w.mode
	}
	return nil
}
