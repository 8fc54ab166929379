package main

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/queue"
)

// workOptions are work's flags.
type workOptions struct {
	queue.WorkerOptions
	wait time.Duration
}

func newWork(a *app) *cobra.Command {
	var o workOptions
	cmd := &cobra.Command{
		Use:   "work QUEUE [flags] -- COMMAND ARGS...",
		Short: "Run a command for each task of a queue",
		Long: `Takes tasks from QUEUE, --concurrency of them at a time, and runs COMMAND for each, with
the payload on its stdin and these variables: MQNOTIFY_TASK_ID, MQNOTIFY_QUEUE,
MQNOTIFY_ATTEMPT (1 for the first), MQNOTIFY_RETRIES (that are left), MQNOTIFY_UNIQUE. Any
number of workers may share a queue, and no task is with two of them at once.

The task is done when COMMAND exits with 0. Else it is tried again, after a second and then
twice as long each time, or after --backoff, until its retries are used up; then it is dead,
which mqnotify tasks shows, and can be tried again from there. A COMMAND that hangs keeps its
place among --concurrency until --timeout ends it.

A task whose worker has vanished goes to another when --visibility has passed, and a second
or more for each time that this has happened before. It takes no retry, but a task whose
COMMAND had begun and that has no retry left is dead then, and so is one that this happens to
for more than --lapses times. A task that it has happened to twice runs alone. A worker that
is there renews its claim for as long as COMMAND runs. When the claim is lost all the same,
since the server was out of reach for that long, or by tasks --cancel, COMMAND and all that
it has started get SIGTERM, and SIGKILL before another worker can have the task. The same
happens when the worker is killed (kill -9): on Linux to daemons too, on other systems to the
process group of COMMAND, on Windows to nothing. COMMAND may see a task twice that it has
done, after a crash. A task is in hand until all of the process group of COMMAND have ended.

It waits in the server until a task is entered or falls due. It enters the queue's recurring
tasks, too.

Ctrl-C lets the tasks in hand finish, for 30 s at most.`,
		Example: `  mqnotify work mail -- ./send-mail
  mqnotify work encode --concurrency 4 --visibility 5m -- sh -c 'read f; exec ./encode "$f"'`,
		Args:              oneNameAndCommand("QUEUE"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.work(cmd.Context(), o, args[0], args[1:])
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.Concurrency, "concurrency", 1, "how many commands run at the same time")
	flags.DurationVar(&o.Visibility, "visibility", 30*time.Second, "how long a vanished worker's task waits; 100ms or more")
	flags.IntVar(&o.Lapses, "lapses", 5, "how often a task comes back whose worker vanished; 2 or more")
	flags.DurationVar(&o.wait, "backoff", 0, "how long a failed task waits; 0 is 1 s, 2 s, 4 s ... up to 1 h")
	flags.DurationVar(&o.HandlerTimeout, "timeout", 0, "end COMMAND after this long; it counts as failed; 0 is never")
	flags.BoolVar(&o.Discard, "discard", false, "delete tasks that are done, instead of keeping them")
	a.registerMetrics(cmd)
	a.registerInherit(cmd, "COMMAND")
	completeNothing(cmd, "concurrency", "visibility", "lapses", "backoff", "timeout")
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
	q, db, done, err := a.openQueueDB(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	m, err := a.measure(ctx, db)
	if err != nil {
		return err
	}
	defer m.stop()
	outcomes := []string{"done", "failed", "dead", "lost", "retried"}
	counts := make(map[string]*atomic.Uint64)
	for _, outcome := range outcomes {
		counts[outcome] = new(atomic.Uint64)
	}
	o.Count = func(what string) { counts[what].Add(1) }
	m.count("mqnotify_tasks_total", "Attempts at tasks, by their outcome. Lost ones came too late: the claim was lost by then.",
		prometheus.Labels{"queue": name}, "outcome", outcomes[:4], func() (all []uint64) {
			for _, outcome := range outcomes[:4] {
				all = append(all, counts[outcome].Load())
			}
			return all
		})
	// The claim is not trusted for the last tenth of its time, after which others may have it; half
	// of that is for the kill itself.
	run := &command{args, min(killAfter, o.Visibility/20), a}
	a.log.InfoContext(ctx, "waits for tasks", "queue", name)
	err = q.Work(ctx, o.WorkerOptions, func(ctx context.Context, task queue.Task) error {
		return run.run(ctx, task.Payload, taskVariables(task))
	})
	a.log.InfoContext(ctx, "stopped", "done", counts["done"].Load(), "failed", counts["failed"].Load(), "dead", counts["dead"].Load(),
		"lost", counts["lost"].Load(), "retried_transactions", counts["retried"].Load())
	return err
}

// taskVariables are the MQNOTIFY_... variables of a task.
func taskVariables(task queue.Task) []string {
	variables := []string{
		"MQNOTIFY_TASK_ID=" + strconv.FormatUint(task.ID, 10),
		"MQNOTIFY_QUEUE=" + task.Queue,
		"MQNOTIFY_ATTEMPT=" + strconv.Itoa(task.Attempt),
		"MQNOTIFY_RETRIES=" + strconv.Itoa(task.Retries),
	}
	if !strings.ContainsRune(task.Unique, 0) { // which no variable can hold
		variables = append(variables, "MQNOTIFY_UNIQUE="+task.Unique)
	}
	return variables
}
