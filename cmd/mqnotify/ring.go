package main

import (
	"bufio"
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/ringbuffer"
)

func newRing(a *app) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ring COMMAND",
		Short: "Keep and read the newest entries of a stream, in a ring buffer",
		Long: `A ring buffer holds a fixed number of entries; a new entry overwrites the oldest. Writers never
wait for readers. Any number of readers may read, and reading removes nothing. A reader that is
too slow is told how many entries it missed.`,
		Example: `  mqnotify ring create log --size 1000
  vmstat 1 | mqnotify ring put log
  mqnotify ring read log --follow`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return usagef("give one of create, put or read") },
	}
	cmd.AddCommand(newRingCreate(a), newRingPut(a), newRingRead(a))
	return cmd
}

func newRingCreate(a *app) *cobra.Command {
	size := 0
	cmd := &cobra.Command{
		Use:   "create NAME --size N",
		Short: "Make a ring buffer",
		Long: `Makes the ring buffer NAME of --size entries, in the tables that init makes. If it exists with the
same size, create changes nothing; if it exists with another size, create fails.`,
		Example: `  mqnotify ring create log --size 1000`,
		Args:    oneName("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("size") {
				return usagef("--size: say how many entries the ring keeps")
			}
			db, err := a.open()
			if err != nil {
				return err
			}
			defer closeDB(db)
			return ringbuffer.Create(cmd.Context(), db, args[0], size)
		},
	}
	cmd.Flags().IntVar(&size, "size", 0, "how many entries the ring keeps; from 1 to 10000000")
	return cmd
}

func newRingPut(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "put NAME [PAYLOAD...]",
		Short: "Append entries to a ring",
		Long: `Appends each PAYLOAD to the ring NAME, or each line of stdin if no PAYLOAD is given, and returns
when the entries are committed. Lines that arrive faster than they can be committed are committed
together: at most 1000 of them and at most the ring's size, all or none.

The wake trigger of mqnotify_ring, which mqnotify init makes, wakes readers at once. If it does not
exist, put calls the procedure mqnotify_wake after each commit. If the database has neither,
readers find the entries by polling, within a second.`,
		Example: `  mqnotify ring put log 'hello'
  vmstat 1 | mqnotify ring put log`,
		Args: someNames("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.ringPut(cmd.Context(), args[0], args[1:])
		},
	}
}

// openRing opens an existing ring and returns its size. The caller calls done to close it.
func (a *app) openRing(ctx context.Context, name string) (ring *ringbuffer.Buffer, size int, done func(), err error) {
	db, err := a.open()
	if err != nil {
		return nil, 0, nil, err
	}
	if ring, err = ringbuffer.Open(db, name); err == nil {
		_, size, err = ring.Head(ctx)
	}
	done = func() {
		if ring != nil {
			_ = ring.Close() // at the end of the command its error has no remedy
		}
		closeDB(db)
	}
	if err != nil {
		done()
		return nil, 0, nil, err
	}
	return ring, size, done, nil
}

func (a *app) ringPut(ctx context.Context, name string, payloads []string) error {
	ring, size, done, err := a.openRing(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	words := feedWords{"an entry", "put", "entries put"}
	return a.feed(ctx, payloads, min(size, 1000), words, func(ctx context.Context, batch [][]byte) (int, error) {
		longer, release := server.Linger(ctx, publishPatience) // the outcome of an interrupted commit is unknown
		defer release()
		if _, err := ring.Append(longer, batch...); err != nil {
			return 0, err
		}
		return len(batch), nil
	})
}

type ringReadOptions struct {
	after  uint64
	last   int
	follow bool
	json   bool
}

func newRingRead(a *app) *cobra.Command {
	var o ringReadOptions
	cmd := &cobra.Command{
		Use:   "read NAME",
		Short: "Print the entries of a ring, and with -f new ones as they arrive",
		Long: `Prints all entries of the ring NAME, or the newest -n, or those with numbers above --after. With
-f it waits in the server for new entries and prints them too. It stores nothing and removes
nothing.

For each entry it prints the payload on a line, or with --json an object with number, time and
payload (payload_base64 if it is not UTF-8). If entries were overwritten before they were read,
their number is logged to stderr, and with --json also printed in their place, as {"missed": 3}.`,
		Example: `  mqnotify ring read log
  mqnotify ring read log -f -n 0
  mqnotify ring read log --after 4711 --json`,
		Args: oneName("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			changed := cmd.Flags().Changed
			switch {
			case changed("last") && changed("after"):
				return usagef("-n and --after: give one of them")
			case changed("last") && o.last < 0:
				return usagef("-n %d: 0 or more", o.last)
			}
			return a.ringRead(cmd.Context(), o, args[0])
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&o.last, "last", "n", -1, "begin with this many of the newest entries")
	flags.Lookup("last").DefValue = "all"
	flags.Uint64Var(&o.after, "after", 0, "begin after the entry with this `number`; overwritten entries after it count as missed")
	flags.BoolVarP(&o.follow, "follow", "f", false, "wait for new entries and print them")
	flags.BoolVar(&o.json, "json", false, "print a line of JSON for each entry")
	return cmd
}

func (a *app) ringRead(ctx context.Context, o ringReadOptions, name string) error {
	ring, size, done, err := a.openRing(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	head, _, err := ring.Head(ctx)
	if err != nil {
		return err
	}
	switch {
	case o.after > head:
		return usagef("--after %d: the newest entry of ring %q is %d", o.after, name, head)
	case o.last >= 0 && o.last < size && uint64(o.last) < head: // else read begins with the oldest entry
		o.after = head - uint64(o.last)
	}
	if err = a.printRing(ctx, o, name, ring, head); ctx.Err() != nil {
		return nil // Ctrl-C is no failure
	}
	return ignoreBrokenPipe(err)
}

// printRing prints the entries up to head, or with --follow until ctx ends. With --follow it waits for a server that is away.
func (a *app) printRing(ctx context.Context, o ringReadOptions, name string, ring *ringbuffer.Buffer, head uint64) error {
	const most = 100
	out := bufio.NewWriter(a.out)
	waits := notify.Exponential(50*time.Millisecond, 5*time.Second)
	for at := o.after; o.follow || at < head; {
		entries, err := ring.Read(ctx, at, most)
		switch {
		case err != nil && o.follow && ctx.Err() == nil && (server.ConnectionLost(err) || server.Busy(err)):
			wait := waits.NextBackOff()
			a.log.WarnContext(ctx, "the server is away or busy; trying again", "error", err, "wait", wait)
			select {
			case <-time.After(wait):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return err
		}
		waits.Reset()
		if missed := entries[0].Missed; missed > 0 {
			a.log.WarnContext(ctx, "entries were overwritten before they were read", "ring", name, "missed", missed)
			if o.json {
				if err := writeJSON(out, map[string]uint64{"missed": missed}); err != nil {
					return err
				}
			}
		}
		for _, e := range entries {
			if !o.follow && e.Number > head {
				break
			}
			if err := printEntry(out, e, o.json); err != nil {
				return err
			}
		}
		if err := out.Flush(); err != nil {
			return outputError{err}
		}
		at = entries[len(entries)-1].Number
	}
	return nil
}

func printEntry(out *bufio.Writer, e ringbuffer.Entry, asJSON bool) error {
	if !asJSON {
		return writeAll(out, string(e.Payload)+"\n")
	}
	return writeJSON(out, struct {
		Number    uint64    `json:"number"`
		WrittenAt time.Time `json:"written_at"`
		shownPayload
	}{e.Number, e.WrittenAt, showPayload(e.Payload)})
}
