package main

import (
	"context"
	"errors"
	"fmt"
	"time"
	_ "time/tzdata" // the zones of CRON_TZ, for hosts that have none: containers, Windows

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/queue"
)

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
		Short: "Make a recurring task, list recurring tasks, or remove one",
		Long: `Stores a recurring task. At each time of --cron, by the server's clock, one of QUEUE's workers
enters it as a task, once, however many workers there are. If several times pass while no worker
runs, one task is entered for all of them. A recurring task with the same NAME is replaced; if
--cron is the same, its next time stays.

--cron has the five fields of crontab(5), in UTC, or is @hourly, @daily or "@every 90s". The prefix
"CRON_TZ=Europe/Berlin " selects another time zone: when clocks change, a time that is skipped has
no task, and a time that comes twice has two. With --unique no task is entered while the one before
is neither done nor dead.

With QUEUE alone it lists the recurring tasks by name, with their next times. With --json each is a
line of JSON, with its payload in payload, or in payload_base64 if it is not UTF-8. --remove removes
NAME; tasks that were entered stay.`,
		Example: `  mqnotify schedule reports nightly --cron '0 3 * * *' '{"kind": "daily"}'
  mqnotify schedule reports often --cron '*/5 * * * *' --unique often --retries 0
  mqnotify schedule reports
  mqnotify schedule reports nightly --remove`,
		Args: someNames("QUEUE"),
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
	flags.StringVar(&o.recurring.Cron, "cron", "", "when to enter the task, as a cron `expression`")
	flags.IntVar(&o.recurring.Entry.Priority, "priority", 0, "tasks with a smaller number run first; from -32768 to 32767")
	flags.StringVar(&o.recurring.Entry.Unique, "unique", "", "enter nothing while a task with this `key` is unfinished")
	flags.IntVar(&o.retries, "retries", 5, "how often a failed task is tried again")
	flags.BoolVar(&o.remove, "remove", false, "remove the recurring task NAME")
	flags.BoolVar(&o.json, "json", false, "print a line of JSON for each recurring task")
	return cmd
}

// The actions of schedule.
const (
	scheduleList = iota
	scheduleStore
	scheduleRemove
)

// read checks the arguments and flags, completes o.recurring from them, and returns the action.
func (o *scheduleOptions) read(args []string, timed, described bool) (what int, err error) {
	switch named := len(args) > 1; {
	case len(args) > 3:
		return 0, usagef("one PAYLOAD only: %q is a second one", args[3])
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
		return 0, usagef("--remove removes NAME: give nothing else")
	case !timed && !o.remove:
		return 0, usagef("say when with --cron, or --remove it; QUEUE alone lists all")
	}
	o.recurring.Name = args[1]
	if o.remove {
		return scheduleRemove, nil
	}
	o.recurring.Entry.Retries = retriesOption(o.retries)
	if len(args) > 2 {
		o.recurring.Entry.Payload = []byte(args[2])
	}
	return scheduleStore, nil
}

func (a *app) schedule(ctx context.Context, o scheduleOptions, name string, what int) error {
	q, _, done, err := a.openQueue(ctx, name)
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
			err = fmt.Errorf("queue %q: %w %q: `mqnotify schedule QUEUE` lists the existing ones", name, errNoRecurring, o.recurring.Name)
		}
		return err
	}
	all, err := q.Schedules(ctx)
	if err != nil {
		return err
	}
	shown := func(s queue.Recurring) any { return shownSchedule(name, s) }
	return ignoreBrokenPipe(writeList(a.out, o.json, all, shown, scheduleTable))
}

var errNoRecurring = errors.New("there is no recurring task")

func scheduleTable(all []queue.Recurring) string {
	if len(all) == 0 {
		return "no recurring tasks\n"
	}
	rows := []string{"NAME\tCRON\tNEXT\tPRIORITY\tRETRIES\tUNIQUE\tPAYLOAD"}
	for _, s := range all {
		rows = append(rows, fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%s\t%s", inCell(s.Name), inCell(s.Cron), s.Next.Format(time.RFC3339),
			s.Entry.Priority, max(0, s.Entry.Retries), inCell(s.Entry.Unique), inCell(string(s.Entry.Payload))))
	}
	return aligned(rows)
}

// shownSchedule returns a recurring task in the form of --json.
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
