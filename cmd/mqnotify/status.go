package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/doctor"
	"github.com/mqnotify/mqnotify/internal/table"
	wait "github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

type statusOptions struct {
	json     bool
	idColumn string
	old      time.Duration // as in doctor.Options
}

func newStatus(a *app) *cobra.Command {
	var o statusOptions
	cmd := &cobra.Command{
		Use:   "status TOPIC",
		Short: "Show TOPIC's wake trigger, its waiting sessions, and the progress of its groups",
		Long: `Shows whether TOPIC has a wake trigger that works, which session leads the topic's gate, and how
many other sessions wait at the gate. Other topics may use the same gate. Without the privilege
PROCESS only sessions of this account are counted. status changes nothing.

Then it shows for each group that consumes TOPIC:

  MEMBER        the active member's name, and its session
  OFFSET        all ids up to this one are done
  DONE ABOVE    how many ids above the offset are done too
  GAPS          ranges of ids between those: rows that are not committed yet, or never will be
  LAG           committed rows that are not done, counted up to 10000
  STORED        how long ago the offset was stored
  DEAD LETTERS  messages that the group gave up

Then it warns if other servers write to this server's tables (it is a replica, or one of several
servers that take writes), and of transactions that have been open for more than a minute, because
offsets can't move past their rows.`,
		Example: `  mqnotify status orders
  mqnotify status orders --json | jq '.groups[] | select(.lag > 100).group'`,
		Args: oneName("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.status(cmd.Context(), o, args[0])
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&o.json, "json", false, "print a JSON object")
	flags.StringVar(&o.idColumn, "id-column", "", "the `column` that consumers read by; default the AUTO_INCREMENT column or the primary key")
	return cmd
}

func (a *app) status(ctx context.Context, o statusOptions, name string) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	s, failure := readStatus(ctx, db, o, name)
	if s == nil {
		return failure
	}
	show := s.text
	if o.json {
		show = s.json
	}
	text, err := show()
	if err != nil {
		return err
	}
	if err := writeAll(a.out, text); err != nil {
		return ignoreBrokenPipe(err)
	}
	return failure // an error of reading the groups
}

type topicStatus struct {
	database string
	name     string
	wakes    []string     // the events of wake triggers that work
	triggers []wake.State // those that this account may see
	gate     wait.GateStatus
	groups   *consumer.Status // nil if they could not be read
	note     error            // the reason why there are no groups
	findings []doctor.Result
}

// readStatus reads the status of a topic. If it could read a part only, it returns this part and the error.
func readStatus(ctx context.Context, db *notify.DB, o statusOptions, name string) (s *topicStatus, err error) {
	t, err := table.Describe(ctx, db.Pool(), db.Name(), name)
	if err != nil {
		return nil, err
	}
	s = &topicStatus{database: db.Name(), name: t.Name} // t.Name has the letter case that locks and offsets use
	if s.triggers, s.gate, err = wake.OfTable(ctx, db, s.name); err != nil {
		return nil, err
	}
	if s.wakes, err = wakingEvents(ctx, db, s.name, s.triggers); err != nil {
		return nil, err
	}
	c, err := consumer.New(db, s.name, consumer.Options{Key: o.idColumn})
	if err != nil {
		return s, err
	}
	s.groups, err = c.Status(ctx)
	switch {
	case errors.Is(err, notify.ErrNoState):
		s.note = notify.ErrNoState
	case errors.Is(err, table.ErrView), errors.Is(err, table.ErrNoKey):
		s.note = err
		return s, nil
	case err != nil:
		return s, err
	}
	for _, g := range s.groups.Groups {
		if g.BelowOffset {
			s.findings = append(s.findings, belowOffset(s.name, g.Group))
		}
	}
	for finding := range doctor.ForStatus(ctx, db, doctor.Options{Topics: []string{s.name}, Old: o.old}) {
		s.findings = append(s.findings, finding)
	}
	return s, ctx.Err()
}

// wakingEvents returns the events of the table's working wake triggers. The account needs EXECUTE on the routine that lists them,
// or TRIGGER on the table.
func wakingEvents(ctx context.Context, db *notify.DB, name string, visible []wake.State) (events []string, err error) {
	triggers, err := wait.ReadTriggers(ctx, db.Pool())
	if err != nil && !wait.NoRoutine(err) {
		return nil, fmt.Errorf("read the wake triggers: %w", err)
	}
	for _, e := range []struct {
		event wait.Events
		name  string
	}{{wait.Insert, "insert"}, {wait.Update, "update"}, {wait.Delete, "delete"}} {
		if triggers[name]&e.event != 0 || slices.ContainsFunc(visible, func(s wake.State) bool { return s.Event == e.name && s.Problem == "" }) {
			events = append(events, e.name)
		}
	}
	return events, nil
}

func belowOffset(topic, group string) doctor.Result {
	return doctor.Result{
		Level: doctor.Problem, Check: "offset", Topic: topic,
		Text:   "the table's ids end below the offset of group " + group + ": was it truncated? A consumer of the group fails",
		Remedy: "let the group begin again: mqnotify consume " + topic + " --group " + group + " --reset --from beginning",
	}
}
