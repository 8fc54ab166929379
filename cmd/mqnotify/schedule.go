package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"
	_ "time/tzdata" // the zones of CRON_TZ, where the host has none: in the container, on Windows

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/queue"
)

// scheduleOptions are schedule's flags.
type scheduleOptions struct {
	recurring queue.Recurring
	retries   int
	remove    bool
	json      bool
}

func newSchedule(a *app) *cobra.Command {
	var o scheduleOptions
	cmd := &cobra.Command{
		Use:   "schedule QUEUE [NAME --cron EXPRESSION [PAYLOAD]]",
		Short: "Enter a task again and again, list such tasks, or remove one",
		Long: `Stores a task that the workers of QUEUE enter each time that --cron says, once, however many
they are, by the server's clock. Times that pass while no worker runs make one task
together. One of the same NAME is replaced; with the same --cron it keeps the time it is due.

--cron has the five fields of crontab(5), in UTC, or is @hourly, @daily, "@every 90s". With
"CRON_TZ=Europe/Berlin " in front it is that zone's time: in the nights when the clocks are
changed, a time that they skip is left out, and one that they show twice comes twice. With
--unique the task is not entered while the one before is neither done nor dead.

With QUEUE alone it lists the recurring tasks by their names, with the time each is due next;
with --json each is a line of JSON, with its payload in payload, or in payload_base64 if
that is no UTF-8. --remove forgets NAME; tasks that were entered stay.`,
		Example: `  mqnotify schedule reports nightly --cron '0 3 * * *' '{"kind": "daily"}'
  mqnotify schedule reports often --cron '*/5 * * * *' --unique often --retries 0
  mqnotify schedule reports
  mqnotify schedule reports nightly --remove`,
		Args:              someNames("QUEUE"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			changed := cmd.Flags().Changed
			what, err := o.read(args, changed("cron"), changed("priority") || changed("unique") || changed("retries"))
			if err != nil {
				return err
			}
			return a.schedule(cmd.Context(), o, args[0], what)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.recurring.Cron, "cron", "", "when, as a cron `expression`")
	flags.IntVar(&o.recurring.Entry.Priority, "priority", 0, "a smaller number is done first; from -32768 to 32767")
	flags.StringVar(&o.recurring.Entry.Unique, "unique", "", "not while a task of this `key` is unfinished")
	flags.IntVar(&o.retries, "retries", 5, "how often each is tried again when it fails")
	flags.BoolVar(&o.remove, "remove", false, "forget the recurring task NAME")
	flags.BoolVar(&o.json, "json", false, "list a line of JSON for each")
	completeNothing(cmd, "cron", "priority", "unique", "retries")
	return cmd
}

// What schedule is to do.
const (
	scheduleList = iota
	scheduleStore
	scheduleRemove
)

// read makes the recurring task of the arguments.
func (o *scheduleOptions) read(args []string, timed, described bool) (what int, err error) {
	switch named := len(args) > 1; {
	case len(args) > 3:
		return 0, usagef("one PAYLOAD only, and %q is another", args[3])
	case o.retries < 0:
		return 0, usagef("--retries %d: 0 or more", o.retries)
	case timed && o.remove:
		return 0, usagef("--cron and --remove: give one of them")
	case o.json && (named || timed || o.remove):
		return 0, usagef("--json is for lists: give QUEUE alone")
	case !named && (timed || o.remove || described):
		return 0, usagef("name the recurring task: mqnotify schedule QUEUE NAME")
	case !named:
		return scheduleList, nil
	case o.remove && (described || len(args) > 2):
		return 0, usagef("--remove forgets NAME: give nothing else")
	case !timed && !o.remove:
		return 0, usagef("say when with --cron, or --remove it; QUEUE alone lists all")
	}
	o.recurring.Name = args[1]
	if o.remove {
		return scheduleRemove, nil
	}
	o.recurring.Entry.Retries = o.retries
	if o.retries == 0 {
		o.recurring.Entry.Retries = -1
	}
	if len(args) > 2 {
		o.recurring.Entry.Payload = []byte(args[2])
	}
	return scheduleStore, nil
}

func (a *app) schedule(ctx context.Context, o scheduleOptions, name string, what int) error {
	q, done, err := a.openQueue(ctx, name)
	if err != nil {
		return err
	}
	defer done()
	switch what {
	case scheduleStore:
		return q.Schedule(ctx, o.recurring)
	case scheduleRemove:
		was, err := q.Unschedule(ctx, o.recurring.Name)
		if err == nil && !was {
			err = fmt.Errorf("queue %q: %w %q: `mqnotify schedule QUEUE` lists those that are there", name, errNoRecurring, o.recurring.Name)
		}
		return err
	}
	all, err := q.Schedules(ctx)
	if err != nil {
		return err
	}
	return ignoreBrokenPipe(a.listSchedules(name, all, o.json))
}

var errNoRecurring = errors.New("there is no recurring task")

func (a *app) listSchedules(name string, all []queue.Recurring, asJSON bool) error {
	var out strings.Builder
	switch {
	case asJSON:
		for _, s := range all {
			line, err := json.Marshal(shownSchedule(name, s))
			if err != nil {
				return err
			}
			out.Write(append(line, '\n'))
		}
	case len(all) == 0:
		out.WriteString("no recurring tasks\n")
	default:
		table := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
		rows := []string{"NAME\tCRON\tNEXT\tPRIORITY\tRETRIES\tUNIQUE\tPAYLOAD"}
		for _, s := range all {
			rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s\t%s", inCell(s.Name), inCell(s.Cron), s.Next.Format(time.RFC3339),
				s.Entry.Priority, max(0, s.Entry.Retries), inCell(s.Entry.Unique), inCell(string(s.Entry.Payload))))
		}
		if _, err := fmt.Fprintln(table, strings.Join(rows, "\n")); err != nil {
			return err
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	return writeAll(a.out, out.String())
}

// shownSchedule is a recurring task as --json writes it.
func shownSchedule(name string, s queue.Recurring) any {
	return struct {
		Queue    string    `json:"queue"`
		Name     string    `json:"name"`
		Cron     string    `json:"cron"`
		Next     time.Time `json:"next"`
		Priority int       `json:"priority"`
		Retries  int       `json:"retries"`
		Unique   string    `json:"unique,omitempty"`
		shownPayload
	}{name, s.Name, s.Cron, s.Next, s.Entry.Priority, max(0, s.Entry.Retries), s.Entry.Unique, showPayload(s.Entry.Payload)}
}
