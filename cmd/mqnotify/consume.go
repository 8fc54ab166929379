package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/metrics"
	"github.com/mqnotify/mqnotify/internal/position"
)

// fromEnd is the default of consume's --from.
const fromEnd = "end"

type consumeOptions struct {
	selection
	group, from, format, flag string
	partitionBy               string
	limit, attempts           int
	partitions                int
	timeout                   time.Duration
	reset, strict, stopAtEnd  bool
	share                     bool
}

func newConsume(a *app) *cobra.Command {
	var o consumeOptions
	cmd := &cobra.Command{
		Use:   "consume TOPIC [flags] [-- COMMAND ARGS...]",
		Short: "Print messages as they arrive, or run a command for each",
		Long: `Reads the messages of TOPIC and waits for more, until Ctrl-C, --limit or --stop-at-end. TOPIC
may be any table with an AUTO_INCREMENT key: in a table that init did not make, each row is a
message, a JSON object of its columns.

With --group, consume continues at the group's offset, and stores the offset. One consumer of a
group is active. The others stand by, and one takes over when the active consumer ends or dies.
Without a group nothing is stored.

With --members-share all consumers of a group are active. Messages are distributed over
partitions by their key (the header key, or --partition-by), and each consumer has its fair
share of the partitions. The messages of a key are handled in order, by one consumer at a time.
When a consumer starts, ends or dies, the partitions are distributed again.

consume runs COMMAND for each message, with the payload on its stdin and these variables:
MQNOTIFY_ID, MQNOTIFY_TOPIC, MQNOTIFY_CREATED_AT, MQNOTIFY_HEADERS (a JSON object) and
MQNOTIFY_HEADER_<NAME>. The message is done when COMMAND exits with 0. Otherwise consume runs
COMMAND again, and after --attempts failures it stores the message in the group's dead letters
(the table mqnotify_dead_letter). Without a group, consume then fails.

consume waits in the server until the table's wake trigger wakes it, when a row is committed
(mqnotify wake). If the table has no wake trigger, consume polls at least once a second.
Messages that mqnotify publishes still wake it at once, and on MySQL with gtid_mode=ON every
commit does. It logs how it waits.

After Ctrl-C the message in hand may take up to 30 s to finish.

A template for --format has .ID, .Topic, .CreatedAt, .Headers and .Payload, the function json,
and .Row.COLUMN for a table that init did not make.`,
		Example: `  mqnotify consume orders --from beginning --stop-at-end
  mqnotify consume orders --group mailer -- ./send-mail
  mqnotify consume orders --format '{{.ID}} {{.Headers.kind}} {{.Payload}}'
  mqnotify consume orders --group billing --members-share --partition-by customer -- ./bill
  mqnotify consume orders --group mailer --reset --from 2026-01-31 --limit 10`,
		Args: oneNameAndCommand("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.consume(cmd.Context(), o, args[0], args[1:], cmd.Flags().Changed("attempts"))
		},
	}
	o.selection.register(cmd)
	o.selection.registerAnyKey(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.group, "group", "", "the group's `name`: continue at its offset, and store the offset")
	flags.StringVar(&o.from, "from", fromEnd, "where to begin without a group, or with a new group:\n"+
		"beginning, end, \"last 10\", an id, a time (2026-01-31T08:00:00Z), or a time ago (90m)")
	flags.StringVar(&o.format, "format", formatJSON, "json, payload, or a Go template")
	flags.StringVar(&o.flag, "flag", "", "wait for the one-row flag in this `form`, counter or row, instead of\n"+
		"polling the table's largest id")
	flags.BoolVar(&o.share, "members-share", false, "share the group's messages with its other consumers, by key")
	flags.IntVar(&o.partitions, "partitions", 0, "a new group's number of partitions, the limit of its active consumers; default 64")
	flags.StringVar(&o.partitionBy, "partition-by", "", "the `column`, or else the header, that has a message's key; a new group's\ndefault is the header key, and in a table that init did not make each row by itself")
	flags.IntVar(&o.limit, "limit", 0, "end after this many messages, including dead letters; 0 is no limit")
	flags.IntVar(&o.attempts, "attempts", 5, "how often COMMAND may fail for a message; 0 is no limit")
	flags.DurationVar(&o.timeout, "timeout", 0, "end COMMAND after this time, and count it as failed; 0 is never")
	flags.BoolVar(&o.reset, "reset", false, "begin at --from even if the group has an offset")
	flags.BoolVar(&o.strict, "strict", false, "deliver in the order of the ids: an open transaction delays all rows\nafter its own")
	flags.BoolVar(&o.stopAtEnd, "stop-at-end", false, "end after the existing messages")
	a.registerMetrics(cmd)
	a.registerInherit(cmd, "COMMAND")
	completeWith(cmd, "from", "beginning", fromEnd)
	completeWith(cmd, "format", formatJSON, formatPayload)
	completeWith(cmd, "flag", "counter", "row")
	return cmd
}

func (a *app) consume(ctx context.Context, o consumeOptions, topic string, args []string, attempts bool) error {
	options, err := o.check(a, args, attempts)
	if err != nil {
		return err
	}
	format, err := parseFormat(o.format)
	if err != nil {
		return err
	}
	if len(args) > 0 {
		if err := findCommand(args); err != nil {
			return err
		}
		options.FlushInterval = -1 // store the offset after each message, because a command often must not run twice
		run := &command{args, killAfter, a}
		return a.follow(ctx, topic, options, func(reader *metrics.Reader, _ context.CancelCauseFunc) consumer.Handler {
			return consumer.Each(func(ctx context.Context, m consumer.Message) error {
				reader.Delivered([]consumer.Message{m}, time.Now())
				return run.handle(ctx, m)
			})
		})
	}
	if o.group == "" && o.from == fromEnd && !o.stopAtEnd {
		var once sync.Once // Watch is called again after a reconnect
		options.Watch = func(string) {
			once.Do(func() {
				a.log.InfoContext(ctx, "waiting for new messages; --from beginning also prints the existing ones")
			})
		}
	}
	return a.follow(ctx, topic, options, a.printing(format))
}

// check validates the flags and converts them to options.
func (o *consumeOptions) check(a *app, command []string, attempts bool) (consumer.Options, error) {
	if _, err := position.Parse(o.from); err != nil {
		return consumer.Options{}, usagef("--from: %w", err)
	}
	options, err := o.options(a)
	if err != nil {
		return options, err
	}
	options.From = o.from
	if o.flag != "" {
		if err := oneOf("flag", o.flag, "counter", "row"); err != nil {
			return options, err
		}
	}
	switch {
	case o.share && o.group == "":
		return options, usagef("--members-share is for the members of a group: add --group NAME")
	case !o.share && (o.partitions != 0 || o.partitionBy != ""):
		return options, usagef("--partitions and --partition-by are for --members-share")
	case o.limit < 0:
		return options, usagef("--limit %d: 0 or more", o.limit)
	case o.attempts < 0:
		return options, usagef("--attempts %d: 0 or more", o.attempts)
	case len(command) == 0 && (attempts || o.timeout != 0):
		return options, usagef("--attempts and --timeout are for a command: end the line with -- COMMAND")
	case len(command) > 0 && o.format != formatJSON:
		return options, usagef("--format is for printing, and a command gets the payload unchanged: leave --format out")
	}
	options.Group, options.Reset, options.StopAtEnd, options.Limit = o.group, o.reset, o.stopAtEnd, o.limit
	options.MembersShare, options.Partitions, options.PartitionBy = o.share, o.partitions, o.partitionBy
	options.Flag, options.Strict = o.flag, o.strict
	options.MaxAttempts, options.HandlerTimeout = o.attempts, o.timeout
	if o.attempts == 0 || len(command) == 0 {
		options.MaxAttempts = -1
	}
	return options, nil
}

// follow runs a consumer until it ends. handler returns the consumer's handler; the handler may call fail to end the run
// with an error.
func (a *app) follow(ctx context.Context, topic string, options consumer.Options,
	handler func(reader *metrics.Reader, fail context.CancelCauseFunc) consumer.Handler,
) error {
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	m, err := a.measure(ctx, db)
	if err != nil {
		return err
	}
	defer m.stop()
	if err := m.groups(db, topic, options.Key); err != nil {
		return err
	}
	reader := m.readers.Topic(topic)
	options.Woken = reader.Woken
	c, err := consumer.New(db, topic, options)
	if err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	err = c.Run(ctx, handler(reader, fail))
	if errors.Is(err, consumer.ErrBelowOffset) && options.Group == "" {
		return fmt.Errorf("the largest id of %s is below the id that was read last: the table was truncated, its newest rows were deleted, "+
			"or --from is past its end: start again", ident.Quote(topic))
	}
	if err != nil {
		return err
	}
	if cause := context.Cause(ctx); errors.As(cause, &outputError{}) {
		return ignoreBrokenPipe(cause)
	}
	return nil
}
