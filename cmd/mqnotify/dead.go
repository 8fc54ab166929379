package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/ident"
)

type deadOptions struct {
	filter   consumer.DeadFilter
	group    string
	all      bool
	json     bool
	idColumn string
}

const (
	deadList   = "list"
	deadShow   = "show"
	deadRetry  = "retry"
	deadDelete = "delete"
)

var deadVerbs = []string{deadList, deadShow, deadRetry, deadDelete}

func newDead(a *app) *cobra.Command {
	var o deadOptions
	cmd := &cobra.Command{
		Use:   "dead TOPIC [list | show ID | retry ID... | delete ID...]",
		Short: "List the messages that groups gave up, try them again, or delete them",
		Long: `Lists the dead letters of TOPIC, the messages that its groups gave up, in the order of their
ids. --group and --error select some of them. With --json each is a line of JSON, with the first
4 KiB of its payload. show prints one dead letter in full.

retry makes the group that gave up a message handle it again; no other group gets it. delete
deletes dead letters; the messages stay in TOPIC. For both give IDs, or --group and --error, or
--all. They print the number of dead letters.

In a message table, retry publishes the message again with a new id, for its group alone. In any
other table the group's consumer reads the row again as it is then, within 5 s if the consumer
runs; the dead letter stays until the row is handled. A deleted row can't be tried again.`,
		Example: `  mqnotify dead orders
  mqnotify dead orders show 17
  mqnotify dead orders retry 17 18
  mqnotify dead orders retry --group mailer --error 'connection refused'
  mqnotify dead orders delete --all`,
		Args: someNames("TOPIC"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return deadVerbs, cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			verb, err := o.read(args[1:], cmd.Flags().Changed)
			if err != nil {
				return err
			}
			return a.dead(cmd.Context(), o, args[0], verb)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.group, "group", "", "only messages that this `group` gave up")
	flags.StringVar(&o.filter.Error, "error", "", "only messages whose error contains this `text`")
	flags.BoolVar(&o.all, "all", false, "retry or delete all dead letters")
	flags.IntVar(&o.filter.Limit, "limit", 100, "list at most this many")
	flags.Uint64Var(&o.filter.After, "after", 0, "list dead letters after this `id`")
	flags.BoolVar(&o.json, "json", false, "print a line of JSON for each dead letter; for retry and delete, one object")
	flags.StringVar(&o.idColumn, "id-column", "", "the `column` that consumers read by; default the AUTO_INCREMENT column or the primary key")
	return cmd
}

// read parses the arguments after TOPIC, and checks the flags against them.
func (o *deadOptions) read(args []string, changed func(flag string) bool) (verb string, err error) {
	verb = deadList
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	if !slices.Contains(deadVerbs, verb) {
		return "", usagef("%q: write list, show, retry or delete", verb)
	}
	for _, text := range args {
		id, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return "", usagef("%q is no dead letter's id: the list has the ids in its first column", text)
		}
		o.filter.IDs = append(o.filter.IDs, id)
	}
	chosen := o.all || o.group != "" || o.filter.Error != ""
	changes := verb == deadRetry || verb == deadDelete
	switch {
	case verb == deadList && len(args) > 0:
		return "", usagef("list takes no ids: show ID prints one")
	case verb == deadShow && (len(args) != 1 || chosen):
		return "", usagef("show takes one id, and no --group, --error or --all")
	case verb != deadList && (changed("limit") || changed("after")):
		return "", usagef("--limit and --after are for list")
	case !changes && o.all:
		return "", usagef("--all is for retry and delete")
	case changes && len(args) > 0 && chosen:
		return "", usagef("give ids, or choose with --group and --error, or --all")
	case changes && len(args) == 0 && !chosen:
		return "", usagef("%s what? give ids, --group, --error, or --all", verb)
	case o.filter.Limit < 1:
		return "", usagef("--limit %d: 1 or more", o.filter.Limit)
	}
	if changes {
		o.filter.Limit = 0
	}
	return verb, nil
}

func (a *app) dead(ctx context.Context, o deadOptions, topic, verb string) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	letters, err := consumer.New(db, topic, consumer.Options{Group: o.group, Key: o.idColumn})
	if err != nil {
		return err
	}
	switch verb {
	case deadShow:
		o.filter.Whole = true
		found, err := letters.DeadLetters(ctx, o.filter)
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("dead letter %d of %s: %w", o.filter.IDs[0], ident.Quote(topic), errNoLetter)
		}
		if err != nil {
			return err
		}
		return ignoreBrokenPipe(a.showDead(found[0], o.json))
	case deadRetry:
		messages, gone, err := letters.RetryDead(ctx, o.filter)
		if written := a.countDead(o, "retried", len(messages), gone); err == nil {
			err = written
		}
		if err == nil && len(gone) > 0 {
			err = fmt.Errorf("%w, and these can't be retried (`mqnotify dead %s show ID` shows what is stored, and delete deletes it): %v", errRowsGone, topic, gone)
		}
		return o.allFound(err, len(messages)+len(gone))
	case deadDelete:
		n, err := letters.DeleteDead(ctx, o.filter)
		if written := a.countDead(o, "deleted", n, nil); err == nil {
			err = written
		}
		return o.allFound(err, n)
	}
	list, err := letters.DeadLetters(ctx, o.filter)
	if err != nil {
		return err
	}
	return ignoreBrokenPipe(writeList(a.out, o.json, list, shownLetter, o.table))
}

var (
	errRowsGone = errors.New("the rows of some dead letters are gone")
	errNoLetter = errors.New("there is no such dead letter: mqnotify dead TOPIC lists the existing ones")
)

// allFound returns err. If err is nil and fewer than all given ids were found, it returns errNoLetter, wrapped.
func (o *deadOptions) allFound(err error, n int) error {
	ids := slices.Compact(slices.Sorted(slices.Values(o.filter.IDs)))
	if err == nil && n < len(ids) {
		return fmt.Errorf("%d of %d: %w", len(ids)-n, len(ids), errNoLetter)
	}
	return err
}

// countDead prints the number of dead letters that were retried or deleted.
func (a *app) countDead(o deadOptions, what string, n int, gone []uint64) error {
	if !o.json {
		return ignoreBrokenPipe(writeAll(a.out, fmt.Sprintln(n)))
	}
	counts := map[string]any{what: n}
	if what == "retried" {
		counts["gone"] = append([]uint64{}, gone...)
	}
	return ignoreBrokenPipe(writeJSON(a.out, counts))
}

func (o *deadOptions) table(list []consumer.DeadLetter) string {
	if len(list) == 0 {
		return "no dead letters\n"
	}
	rows := []string{"ID\tGROUP\tMESSAGE\tATTEMPTS\tFAILED AT\tSTATE\tPAYLOAD\tERROR"}
	for _, l := range list {
		rows = append(rows, fmt.Sprintf("%d\t%s\t%d\t%d\t%s\t%s\t%s\t%s", l.ID, inCell(l.Group), l.MessageID, l.Attempts,
			l.FailedAt.Format(time.RFC3339), deadState(l), inCell(string(l.Payload)), inCell(l.Error)))
	}
	text := aligned(rows)
	if len(list) == o.filter.Limit {
		text += fmt.Sprintf("there may be more: --after %d\n", list[len(list)-1].ID)
	}
	return text
}

func deadState(l consumer.DeadLetter) string {
	if l.Retrying {
		return "retrying"
	}
	return "dead"
}

// showDead prints a dead letter in full. It replaces control characters, which could change the terminal's state.
func (a *app) showDead(l consumer.DeadLetter, asJSON bool) error {
	if asJSON {
		return writeJSON(a.out, shownLetter(l))
	}
	var out strings.Builder
	field := func(name, format string, args ...any) {
		fmt.Fprintf(&out, "%-10s %s\n", name, harmless(fmt.Sprintf(format, args...)))
	}
	field("id:", "%d, %s", l.ID, deadState(l))
	field("group:", "%s", l.Group)
	field("message:", "%d of %s", l.MessageID, l.Topic)
	field("failed at:", "%s, at attempt %d", l.FailedAt.Format(time.RFC3339), l.Attempts)
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		field("header:", "%s: %s", name, l.Headers[name])
	}
	field("size:", "%d bytes", l.Size)
	field("error:", "%s", strings.Join(strings.Fields(l.Error), " "))
	out.WriteString("\n" + strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) || r == '\n' || r == '\t' {
			return r
		}
		return unicode.ReplacementChar
	}, string(l.Payload)) + "\n")
	return writeAll(a.out, out.String())
}

// shownLetter returns a dead letter in the form of --json.
func shownLetter(l consumer.DeadLetter) any {
	for cut := 1; cut < utf8.UTFMax && cut < len(l.Payload) && uint64(len(l.Payload)) < l.Size; cut++ { // drop half a character at the end
		if text := l.Payload[:len(l.Payload)-cut]; !utf8.Valid(l.Payload) && utf8.Valid(text) {
			l.Payload = text
		}
	}
	return struct {
		ID        uint64            `json:"id"`
		Topic     string            `json:"topic"`
		Group     string            `json:"group"`
		MessageID uint64            `json:"message_id"`
		Headers   map[string]string `json:"headers,omitempty"`
		Size      uint64            `json:"size"`
		Attempts  int               `json:"attempts"`
		Error     string            `json:"error"`
		FailedAt  time.Time         `json:"failed_at"`
		Retrying  bool              `json:"retrying"`
		shownPayload
	}{l.ID, l.Topic, l.Group, l.MessageID, l.Headers, l.Size, l.Attempts, l.Error, l.FailedAt, l.Retrying, showPayload(l.Payload)}
}
