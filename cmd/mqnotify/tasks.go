package main

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/queue"
)

// taskStates are the words of queue.Task.State, in the order of a task's life.
var taskStates = []string{"scheduled", "ready", "in progress", "failed", "done", "dead"}

// tasksOptions are tasks' flags.
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
		Long: `Lists the tasks of QUEUE by their ids: those in the states of --state, else all that are
not done. The states are scheduled, ready, in progress, failed (it will be tried again), done
and dead (it will not). With --json each is a line of JSON, with its payload in payload, or in
payload_base64 if that is no UTF-8.

--retry makes tasks ready that are dead, failed or scheduled, and --retry-dead all that are
dead; they get --retries anew. --cancel makes tasks dead, those in progress included: their
commands are ended at once, and the tasks are dead when these have ended. A unique key is free,
and --retry takes effect, after that. --prune deletes tasks that have been done for longer than
it says, and with --dead the dead ones too, in small batches. These print how many tasks it was.`,
		Example: `  mqnotify tasks mail
  mqnotify tasks mail --state dead --json
  mqnotify tasks mail --retry 17,18
  mqnotify tasks mail --prune 168h`,
		Args:              oneName("QUEUE"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.tasks(cmd.Context(), o, args[0], cmd.Flags().Changed)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&o.states, "state", nil, "list only tasks in these states, with commas between them")
	flags.IntVar(&o.limit, "limit", 100, "list at most this many")
	flags.Uint64Var(&o.after, "after", 0, "list tasks after this `id`")
	flags.BoolVar(&o.json, "json", false, "a line of JSON for each task")
	flags.BoolVar(&o.counts, "count", false, "only how many tasks are in each state")
	flags.StringSliceVar(&o.retry, "retry", nil, "try these `ids` again, with commas between them")
	flags.BoolVar(&o.retryDead, "retry-dead", false, "try all dead tasks again")
	flags.IntVar(&o.retries, "retries", 5, "for --retry and --retry-dead: how often it is tried again when it fails")
	flags.StringSliceVar(&o.cancel, "cancel", nil, "cancel these `ids`, with commas between them")
	flags.DurationVar(&o.prune, "prune", 0, "delete tasks that have been done for longer")
	flags.BoolVar(&o.pruneDead, "dead", false, "for --prune: the dead ones too")
	completeWith(cmd, "state", taskStates...)
	completeNothing(cmd, "limit", "after", "retry", "retries", "cancel", "prune")
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
		return usagef("--state is for lists: --retry and --cancel have ids, and the others their own states")
	case actions > 0 && (changed("limit") || changed("after")):
		return usagef("--limit and --after are for lists")
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
	q, done, err := a.openQueue(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	retries := o.retries
	if retries == 0 {
		retries = -1
	}
	var n int
	switch {
	case o.counts:
		return a.countTasks(ctx, q, o.json)
	case o.retryDead || len(o.retry) > 0:
		n, err = q.Retry(ctx, filter, retries)
	case len(o.cancel) > 0:
		n, err = q.Cancel(ctx, filter)
	case changed("prune"):
		n, err = q.Prune(ctx, o.prune, o.pruned()...)
	default:
		return a.listTasks(ctx, q, filter, o.json)
	}
	if err != nil {
		return err
	}
	return ignoreBrokenPipe(writeAll(a.out, fmt.Sprintln(n)))
}

func (o *tasksOptions) filter() (f queue.Filter, err error) {
	f.Limit, f.After = o.limit, o.after
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
	if f.States = o.states; len(f.States) == 0 {
		f.States = []string{"scheduled", "ready", "in progress", "failed", "dead"}
	}
	return f, nil
}

// pruned are the states of the tasks that --prune deletes.
func (o *tasksOptions) pruned() []string {
	if o.pruneDead {
		return []string{"done", "dead"}
	}
	return []string{"done"}
}

func (a *app) listTasks(ctx context.Context, q *queue.Queue, filter queue.Filter, asJSON bool) error {
	tasks, err := q.List(ctx, filter)
	if err != nil {
		return err
	}
	var out strings.Builder
	if asJSON {
		for _, task := range tasks {
			line, err := json.Marshal(shownTask(task))
			if err != nil {
				return err
			}
			out.Write(append(line, '\n'))
		}
		return ignoreBrokenPipe(writeAll(a.out, out.String()))
	}
	if len(tasks) == 0 {
		return ignoreBrokenPipe(writeAll(a.out, "no tasks\n"))
	}
	table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	rows := []string{"ID\tSTATE\tPRIORITY\tATTEMPTS\tRETRIES\tLAPSES\tAT\tOWNER\tPAYLOAD\tERROR"}
	for _, t := range tasks {
		at := ""
		if !t.At.IsZero() {
			at = t.At.Format(time.RFC3339)
		}
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s", t.ID, t.State, t.Priority, t.Attempt, t.Retries, t.Lapses, at,
			inCell(t.Owner), inCell(string(t.Payload)), inCell(t.LastError)))
	}
	if _, err := fmt.Fprintln(table, strings.Join(rows, "\n")); err != nil {
		return err
	}
	if err := table.Flush(); err != nil {
		return err
	}
	if len(tasks) == filter.Limit {
		fmt.Fprintf(&out, "there may be more: --after %d\n", tasks[len(tasks)-1].ID)
	}
	return ignoreBrokenPipe(writeAll(a.out, out.String()))
}

// inCell is a text as a table shows it: in one line, and not all of it.
func inCell(text string) string {
	const most = 40
	text = harmless(strings.Join(strings.Fields(strings.ToValidUTF8(text[:min(len(text), 1000)], "\uFFFD")), " "))
	if letters := []rune(text); len(letters) > most {
		text = string(letters[:most-1]) + "…"
	}
	return text
}

// shownTask is a task as --json writes it.
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

// shownPayload is a payload as --json writes it.
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
		text, err := json.Marshal(all)
		if err != nil {
			return err
		}
		return ignoreBrokenPipe(writeAll(a.out, string(text)+"\n"))
	}
	var out strings.Builder
	for _, s := range taskStates {
		fmt.Fprintf(&out, "%-12s %d\n", s, counts[s])
	}
	return ignoreBrokenPipe(writeAll(a.out, out.String()))
}
