package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/queue"
)

// taskStates are the values of queue.Task.State, in the order of a task's life.
var taskStates = []string{"scheduled", "ready", "in progress", "failed", "done", "dead"}

type tasksOptions struct {
	states        []string
	limit         int
	after         uint64
	json, counts  bool
	retry, cancel []string
	retryDead     bool
	retries       int
	prune         time.Duration
	pruneDead     bool
}

func newTasks(a *app) *cobra.Command {
	var o tasksOptions
	cmd := &cobra.Command{
		Use:   "tasks QUEUE",
		Short: "List the tasks of a queue, try them again, cancel or delete them",
		Long: `Lists the tasks of QUEUE in the order of their ids: those in the states of --state, or else all
that are not done. The states are scheduled, ready, in progress, failed (it will be tried again),
done and dead (it will not be tried again). With --json each is a line of JSON, with its payload in
payload, or in payload_base64 if it is not UTF-8.

--retry makes dead, failed or scheduled tasks ready, and --retry-dead all dead tasks. Their retries
are set to --retries. --cancel makes tasks dead. For a task in progress it ends the command at
once, and the task is dead when the command has ended; only then is its unique key free, and can
--retry make it ready. --prune deletes tasks that have been done for longer than the given time,
with --dead also dead ones, in small batches. These flags print the number of tasks.`,
		Example: `  mqnotify tasks mail
  mqnotify tasks mail --state dead --json
  mqnotify tasks mail --retry 17,18
  mqnotify tasks mail --prune 168h`,
		Args: oneName("QUEUE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.tasks(cmd.Context(), o, args[0], cmd.Flags().Changed)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.states, "state", nil, "list only tasks in these states, separated by commas")
	flags.IntVar(&o.limit, "limit", 100, "list at most this many")
	flags.Uint64Var(&o.after, "after", 0, "list tasks after this `id`")
	flags.BoolVar(&o.json, "json", false, "print a line of JSON for each task")
	flags.BoolVar(&o.counts, "count", false, "print only the number of tasks in each state")
	flags.StringSliceVar(&o.retry, "retry", nil, "try the tasks with these `ids` again, separated by commas")
	flags.BoolVar(&o.retryDead, "retry-dead", false, "try all dead tasks again")
	flags.IntVar(&o.retries, "retries", 5, "for --retry and --retry-dead: how often a failed task is tried again")
	flags.StringSliceVar(&o.cancel, "cancel", nil, "cancel the tasks with these `ids`, separated by commas")
	flags.DurationVar(&o.prune, "prune", 0, "delete tasks that have been done for longer than this")
	flags.BoolVar(&o.pruneDead, "dead", false, "for --prune: also delete dead tasks")
	completeWith(cmd, "state", taskStates...)
	return cmd
}

func (a *app) tasks(ctx context.Context, o tasksOptions, name string, changed func(flag string) bool) error {
	actions := 0
	for _, flag := range []string{"retry", "retry-dead", "cancel", "prune", "count"} {
		if changed(flag) {
			actions++
		}
	}
	switch {
	case actions > 1:
		return usagef("--retry, --retry-dead, --cancel, --prune and --count: give one of them")
	case actions > 0 && changed("state"):
		return usagef("--state is for lists: leave it out with --retry, --retry-dead, --cancel, --prune and --count")
	case actions > 0 && (changed("limit") || changed("after")):
		return usagef("--limit and --after are for lists")
	case o.json && actions > 0 && !o.counts:
		return usagef("--json is for lists and --count")
	case changed("retries") && !changed("retry") && !changed("retry-dead"):
		return usagef("--retries is for --retry and --retry-dead")
	case changed("retry") && len(o.retry) == 0, changed("cancel") && len(o.cancel) == 0:
		return usagef("--retry and --cancel: give the ids of tasks, with commas between them")
	case o.limit < 1:
		return usagef("--limit %d: 1 or more", o.limit)
	case o.retries < 0:
		return usagef("--retries %d: 0 or more", o.retries)
	case o.prune < 0:
		return usagef("--prune %v: 0 or more", o.prune)
	case o.pruneDead && !changed("prune"):
		return usagef("--dead is for --prune: for a list, --state dead")
	}
	filter, err := o.filter()
	if err != nil {
		return err
	}
	q, _, done, err := a.openQueue(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	var n int
	switch {
	case o.counts:
		return a.countTasks(ctx, q, o.json)
	case o.retryDead || len(o.retry) > 0:
		n, err = q.Retry(ctx, filter, retriesOption(o.retries))
	case len(o.cancel) > 0:
		n, err = q.Cancel(ctx, filter)
	case changed("prune"):
		n, err = q.Prune(ctx, o.prune, o.pruned()...)
	default:
		tasks, err := q.List(ctx, filter)
		if err != nil {
			return err
		}
		return ignoreBrokenPipe(writeList(a.out, o.json, tasks, shownTask, o.table))
	}
	if err != nil {
		return err
	}
	return ignoreBrokenPipe(writeAll(a.out, fmt.Sprintln(n)))
}

func (o *tasksOptions) filter() (f queue.Filter, err error) {
	for _, text := range append(o.retry, o.cancel...) {
		id, err := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		if err != nil {
			return f, usagef("%q is no task's id: give numbers, with commas between them", text)
		}
		f.IDs = append(f.IDs, id)
	}
	if len(f.IDs) > 0 || o.retryDead {
		return f, nil
	}
	f.Limit, f.After = o.limit, o.after
	if f.States = o.states; len(f.States) == 0 {
		f.States = []string{"scheduled", "ready", "in progress", "failed", "dead"}
	}
	return f, nil
}

// pruned returns the states of the tasks that --prune deletes.
func (o *tasksOptions) pruned() []string {
	if o.pruneDead {
		return []string{"done", "dead"}
	}
	return []string{"done"}
}

func (o *tasksOptions) table(tasks []queue.Task) string {
	if len(tasks) == 0 {
		return "no tasks\n"
	}
	rows := []string{"ID\tSTATE\tPRIORITY\tATTEMPTS\tRETRIES\tLAPSES\tAT\tOWNER\tPAYLOAD\tERROR"}
	for _, t := range tasks {
		at := ""
		if !t.At.IsZero() {
			at = t.At.Format(time.RFC3339)
		}
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s", t.ID, t.State, t.Priority, t.Attempt, t.Retries, t.Lapses, at,
			inCell(t.Owner), inCell(string(t.Payload)), inCell(t.LastError)))
	}
	text := aligned(rows)
	if len(tasks) == o.limit {
		text += fmt.Sprintf("there may be more: --after %d\n", tasks[len(tasks)-1].ID)
	}
	return text
}

// inCell returns the beginning of a text in one line, for a cell of a table.
func inCell(text string) string {
	const most = 40
	text = harmless(strings.Join(strings.Fields(strings.ToValidUTF8(text[:min(len(text), 1000)], "\uFFFD")), " "))
	if letters := []rune(text); len(letters) > most {
		text = string(letters[:most-1]) + "…"
	}
	return text
}

// shownTask returns a task in the form of --json.
func shownTask(t queue.Task) any {
	shown := struct {
		ID        uint64     `json:"id"`
		Queue     string     `json:"queue"`
		State     string     `json:"state"`
		At        *time.Time `json:"at,omitempty"`
		Priority  int        `json:"priority"`
		Attempts  int        `json:"attempts"`
		Retries   int        `json:"retries"`
		Lapses    int        `json:"lapses"`
		Unique    string     `json:"unique,omitempty"`
		Owner     string     `json:"owner,omitempty"`
		CreatedAt time.Time  `json:"created_at"`
		Error     string     `json:"error,omitempty"`
		shownPayload
	}{
		ID: t.ID, Queue: t.Queue, State: t.State, Priority: t.Priority, Attempts: t.Attempt, Retries: t.Retries, Lapses: t.Lapses,
		Unique: t.Unique, Owner: t.Owner, CreatedAt: t.CreatedAt, Error: t.LastError,
		shownPayload: showPayload(t.Payload),
	}
	if !t.At.IsZero() {
		shown.At = &t.At
	}
	return shown
}

// shownPayload is a payload in the form of --json.
type shownPayload struct {
	Payload *string `json:"payload,omitempty"`
	Base64  []byte  `json:"payload_base64,omitempty"`
}

func showPayload(payload []byte) shownPayload {
	if text := string(payload); utf8.ValidString(text) {
		return shownPayload{Payload: &text}
	}
	return shownPayload{Base64: payload}
}

func (a *app) countTasks(ctx context.Context, q *queue.Queue, asJSON bool) error {
	counts, err := q.Counts(ctx)
	if err != nil {
		return err
	}
	if asJSON {
		all := make(map[string]int)
		for _, s := range taskStates {
			all[s] = counts[s]
		}
		return ignoreBrokenPipe(writeJSON(a.out, all))
	}
	var out strings.Builder
	for _, s := range taskStates {
		fmt.Fprintf(&out, "%-12s %d\n", s, counts[s])
	}
	return ignoreBrokenPipe(writeAll(a.out, out.String()))
}
