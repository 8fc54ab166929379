package main

import (
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/notify"
)

// modeAuto is what the flag calls consumer.ModeAuto.
const modeAuto = "auto"

// waitModes are what --mode takes.
var waitModes = []string{
	modeAuto, string(consumer.ModeGate), string(consumer.ModeGTID), string(consumer.ModePoll), modeHandshake,
}

// waiting is how consume and tail wait for new rows.
type waiting struct {
	mode string
	looks
}

func (w *waiting) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&w.mode, "mode", modeAuto, "how to wait: auto (the best that works of the next three), gate,\n"+
		"gtid, poll, or handshake (with produce --mode handshake)")
	completeWith(cmd, "mode", waitModes...)
	w.looks.register(cmd)
}

// into checks the flags and puts them into the options.
func (w *waiting) into(options *consumer.Options) error {
	if err := oneOf("mode", w.mode, waitModes...); err != nil {
		return err
	}
	if w.mode != modeAuto {
		options.Mode = consumer.Mode(w.mode)
	}
	var err error
	options.Gate, err = w.gate()
	return err
}

// The bounds between which a keeper waits between two looks.
const (
	leastLook = 10 * time.Millisecond
	mostLook  = time.Second
)

// looks is how often a keeper looks for what foreign writers did.
type looks struct {
	least, most time.Duration
}

func (l *looks) register(cmd *cobra.Command) {
	l.least = leastLook
	cmd.Flags().DurationVar(&l.most, "look", mostLook, "the longest time between two looks for new rows, while this\n"+
		"process keeps the gate; who publishes with mqnotify need not be looked for")
	completeNothing(cmd, "look")
}

// gate checks the flags and makes options of them.
func (l *looks) gate() (notify.GateOptions, error) {
	switch {
	case l.most <= 0:
		return notify.GateOptions{}, usagef("--look %v: more than 0", l.most)
	case l.least <= 0:
		return notify.GateOptions{}, usagef("--look-min %v: more than 0", l.least)
	}
	least, most := min(l.least, l.most), l.most
	return notify.GateOptions{Look: func() backoff.BackOff {
		return &notify.Fibonacci{Min: least, Max: most, Jitter: 0.1}
	}}, nil
}
