package main

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/queue"
)

type workOptions struct {
	queue.WorkerOptions
	wait time.Duration
}

func newWork(a *app) *cobra.Command {
	var o workOptions
	cmd := &cobra.Command{
		Use:   "work QUEUE [flags] -- COMMAND ARGS...",
		Short: "Run a command for each task of a queue",
		Long: `Takes tasks from QUEUE, at most --concurrency at a time, and runs COMMAND for each, with the payload
on its stdin and these variables: MQNOTIFY_TASK_ID, MQNOTIFY_QUEUE, MQNOTIFY_ATTEMPT (1 for the
first), MQNOTIFY_RETRIES (the retries left), MQNOTIFY_UNIQUE. Any number of workers may share a
queue, and no two of them have the same task at the same time.

The task is done when COMMAND exits with 0. Otherwise it is tried again, after 1 s and then twice as
long each time, or after --backoff, until no retry is left; then it is dead. mqnotify tasks lists
dead tasks and can retry them. A COMMAND that hangs counts toward --concurrency until --timeout ends
it.

While COMMAND runs the worker renews its claim. If a worker vanishes, its claim lapses after
--visibility, and another worker gets the task; after each lapse the task waits for a second or more
longer. A lapse uses no retry. But the task is dead if COMMAND had begun and no retry is left, or
after more than --lapses lapses. After two lapses a task runs alone.

The worker loses its claim if it can't reach the server for too long, or by tasks --cancel. COMMAND
and all that it has started then get SIGTERM, and SIGKILL before another worker can get the task.
The same happens when the worker is killed (kill -9): on Linux including daemons, on other Unix
systems to the process group of COMMAND, on Windows to nothing. After a crash COMMAND may get a task
that it has done before. A task is in hand until all processes of COMMAND's process group have ended.

work waits in the server until a task is entered or due. It also enters the queue's recurring tasks.

After Ctrl-C the tasks in hand may take up to 30 s to finish.`,
		Example: `  mqnotify work mail -- ./send-mail
  mqnotify work encode --concurrency 4 --visibility 5m -- sh -c 'read f; exec ./encode "$f"'`,
		Args: oneNameAndCommand("QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.work(cmd.Context(), o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Concurrency, "concurrency", 1, "how many commands run at the same time")
	flags.DurationVar(&o.Visibility, "visibility", 30*time.Second, "how long the claim of a vanished worker holds; 100ms or more")
	flags.IntVar(&o.Lapses, "lapses", 5, "how often a task is tried again whose worker vanished; 2 or more")
	flags.DurationVar(&o.wait, "backoff", 0, "how long a failed task waits; 0 is 1 s, 2 s, 4 s ... up to 1 h")
	flags.DurationVar(&o.HandlerTimeout, "timeout", 0, "end COMMAND after this time, and count it as failed; 0 is never")
	flags.BoolVar(&o.Discard, "discard", false, "delete tasks that are done instead of keeping them")
	a.registerMetrics(cmd)
	a.registerInherit(cmd, "COMMAND")
	return cmd
}

func (o *workOptions) check() error {
	switch {
	case o.Concurrency < 1:
		return usagef("--concurrency %d: 1 or more", o.Concurrency)
	case o.Visibility <= 0:
		return usagef("--visibility %v: more than 0", o.Visibility)
	case o.Lapses < 2:
		return usagef("--lapses %d: 2 or more", o.Lapses)
	case o.HandlerTimeout < 0:
		return usagef("--timeout %v: 0 or more", o.HandlerTimeout)
	case o.wait < 0:
		return usagef("--backoff %v: 0 or more", o.wait)
	case o.wait > 0:
		o.Backoff = func(int) time.Duration { return o.wait }
	}
	return nil
}

func (a *app) work(ctx context.Context, o workOptions, name string, args []string) error {
	if err := o.check(); err != nil {
		return err
	}
	if err := findCommand(args); err != nil {
		return err
	}
	q, db, done, err := a.openQueue(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	m, err := a.measure(ctx, db)
	if err != nil {
		return err
	}
	defer m.stop()
	counts := make(map[string]*atomic.Uint64)
	for _, outcome := range []string{"done", "failed", "dead", "lost"} {
		counts[outcome] = new(atomic.Uint64)
	}
	m.count("mqnotify_tasks_total", "Attempts at tasks, by outcome. An attempt is lost if the claim was lost before the outcome was stored.",
		"queue", name, counts)
	counts["retried"] = new(atomic.Uint64) // transactions that were run again: not an outcome
	o.Count = func(what string) { counts[what].Add(1) }
	// The worker counts its claim as lost a tenth of the visibility timeout before it lapses. Half of the tenth is for SIGTERM, the
	// other half for the kill itself.
	run := &command{args, min(killAfter, o.Visibility/20), a}
	a.log.InfoContext(ctx, "waiting for tasks", "queue", name)
	err = q.Work(ctx, o.WorkerOptions, func(ctx context.Context, task queue.Task) error {
		return run.run(ctx, task.Payload, taskVariables(task))
	})
	a.log.InfoContext(ctx, "stopped", "done", counts["done"].Load(), "failed", counts["failed"].Load(), "dead", counts["dead"].Load(),
		"lost", counts["lost"].Load(), "retried_transactions", counts["retried"].Load())
	return err
}

// taskVariables returns the MQNOTIFY_... variables of a task.
func taskVariables(task queue.Task) []string {
	variables := []string{
		"MQNOTIFY_TASK_ID=" + strconv.FormatUint(task.ID, 10),
		"MQNOTIFY_QUEUE=" + task.Queue,
		"MQNOTIFY_ATTEMPT=" + strconv.Itoa(task.Attempt),
		"MQNOTIFY_RETRIES=" + strconv.Itoa(task.Retries),
	}
	if !strings.ContainsRune(task.Unique, 0) { // a variable can't contain a zero byte
		variables = append(variables, "MQNOTIFY_UNIQUE="+task.Unique)
	}
	return variables
}
