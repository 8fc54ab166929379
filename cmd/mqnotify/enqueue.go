package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/queue"
)

type enqueueOptions struct {
	entry    queue.Entry
	at       string
	retries  int
	batch    int
	printIDs bool
}

func newEnqueue(a *app) *cobra.Command {
	var o enqueueOptions
	cmd := &cobra.Command{
		Use:   "enqueue QUEUE [PAYLOAD...]",
		Short: "Enter tasks into a queue",
		Long: `Enters each PAYLOAD as a task, or each line of stdin if no PAYLOAD is given, and returns when
the tasks are committed. Lines that arrive faster than they can be committed are committed
together: at most --batch of them, all or none. QUEUE must exist: mqnotify init --queue makes it.

A task with a smaller --priority runs before one with a larger. --delay counts from now, by the
server's clock. With --unique, enqueue enters no task while the queue has a task with this key
that is neither done nor dead.

The wake trigger of mqnotify_task, which mqnotify init makes, wakes idle workers at once. If it
does not exist, enqueue calls the procedure mqnotify_wake after each commit. If the database has
neither, workers find the tasks by polling, within a second.`,
		Example: `  mqnotify enqueue mail 'hello'
  mqnotify enqueue mail --delay 10m --retries 3 --print-ids 'later'
  mqnotify enqueue reports --unique may --priority -1 '{"month": 5}'
  ls *.wav | mqnotify enqueue encode`,
		Args: someNames("QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.enqueue(cmd.Context(), o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.entry.Priority, "priority", 0, "tasks with a smaller number run first; from -32768 to 32767")
	flags.DurationVar(&o.entry.Delay, "delay", 0, "run the task no sooner than this long from now")
	flags.StringVar(&o.at, "at", "", "run the task no sooner than at this `time`, such as 2026-01-31T08:00:00Z")
	flags.StringVar(&o.entry.Unique, "unique", "", "enter nothing if a task with this `key` is unfinished; for one PAYLOAD")
	flags.IntVar(&o.retries, "retries", 5, "how often a failed task is tried again")
	flags.IntVar(&o.batch, "batch", 1000, "commit at most this many lines together")
	flags.BoolVar(&o.printIDs, "print-ids", false, "print the id of each committed task on a line; 0 if --unique\nkept the task out")
	return cmd
}

// check validates the flags and completes o.entry, the template of all tasks.
func (o *enqueueOptions) check(payloads int) error {
	switch {
	case o.batch < 1:
		return usagef("--batch %d: 1 or more", o.batch)
	case o.retries < 0:
		return usagef("--retries %d: 0 or more", o.retries)
	case o.entry.Delay < 0:
		return usagef("--delay %v: 0 or more", o.entry.Delay)
	case o.at != "" && o.entry.Delay != 0:
		return usagef("--at and --delay: give one of them")
	case o.entry.Unique != "" && payloads != 1:
		return usagef("--unique is for one task: give one PAYLOAD")
	}
	o.entry.Retries = retriesOption(o.retries)
	if o.at != "" {
		at, err := time.Parse(time.RFC3339, o.at)
		if err != nil {
			return usagef("--at %q: write it as 2026-01-31T08:00:00Z", o.at)
		}
		o.entry.At = at
	}
	return nil
}

// retriesOption converts --retries, of which 0 means none, to an option of package queue, of which 0 means the default.
func retriesOption(flag int) int {
	if flag == 0 {
		return -1
	}
	return flag
}

func (a *app) enqueue(ctx context.Context, o enqueueOptions, name string, payloads []string) error {
	if err := o.check(len(payloads)); err != nil {
		return err
	}
	q, _, done, err := a.openQueue(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	words := feedWords{"a task", "entered", "tasks entered"}
	return a.feed(ctx, payloads, o.batch, words, func(ctx context.Context, payloads [][]byte) (int, error) {
		entries := make([]queue.Entry, len(payloads))
		for i, payload := range payloads {
			entries[i] = o.entry
			entries[i].Payload = payload
		}
		longer, release := server.Linger(ctx, publishPatience) // the outcome of an interrupted commit is unknown
		defer release()
		ids, err := q.Enqueue(longer, entries...)
		if len(ids) == 1 && ids[0] == 0 {
			a.log.InfoContext(ctx, "not entered: a task with this key is unfinished", "unique", o.entry.Unique)
		}
		if err == nil && o.printIDs {
			err = writeAll(a.out, idLines(ids))
		}
		return len(ids), err
	})
}

// poolIdle is how long a command of a queue keeps an unused connection of the pool.
const poolIdle = 5 * time.Second

// openQueue opens an existing queue, and its database. The caller calls done to close both.
func (a *app) openQueue(ctx context.Context, name string) (q *queue.Queue, db *notify.DB, done func(), err error) {
	if db, err = a.open(); err != nil {
		return nil, nil, nil, err
	}
	db.Pool().SetConnMaxIdleTime(poolIdle) // an idle worker needs no connection of the pool
	if q, err = queue.New(db, name, queue.Options{Logger: a.log}); err == nil {
		_, err = q.Ordered(ctx)
	}
	if err != nil {
		if q != nil {
			_ = q.Close()
		}
		closeDB(db)
		return nil, nil, nil, err
	}
	return q, db, func() {
		_ = q.Close() // at the end of the command its error has no remedy
		closeDB(db)
	}, nil
}
