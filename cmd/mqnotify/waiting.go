package main

import (
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
)

// modeAuto is what the flag calls the empty consumer.Options.Mode.
const modeAuto = "auto"

// waitModes are what --mode takes.
var waitModes = []string{modeAuto, modeHandshake, "poll"}

// waiting is how consume and tail wait for new rows.
type waiting struct{ mode string }

func (w *waiting) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.mode, "mode", modeAuto, "how to wait: auto (by the wake trigger, or by polling where there is none),\n"+
		"handshake (with produce --mode handshake) or poll")
	completeWith(cmd, "mode", waitModes...)
}

// into checks the flag and puts it into the options.
func (w *waiting) into(options *consumer.Options) error {
	if err := oneOf("mode", w.mode, waitModes...); err != nil {
		return err
	}
	if w.mode != modeAuto {
		options.Mode = w.mode
	}
	return nil
}
