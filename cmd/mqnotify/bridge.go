package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/redact"
)

// The environment's names for URLs that have a password in them.
const (
	envTo   = "MQNOTIFY_TO"
	envFrom = "MQNOTIFY_FROM"
)

// fromBeginning is bridge's --from: rows that are there already go over too.
const fromBeginning = "beginning"

// destinations says which URLs --to takes.
const destinations = `  stdout                            lines of JSON
  file:///PATH?rotate=100MB&keep=9  lines of JSON, on the disk (fsync) before they count
  exec:PROGRAM%20ARG                a program: a line of JSON a row on its stdin, the id on
                                    its stdout when it is stored
  nats://HOST?stream=S&subject=T    NATS JetStream; the stream is made if it is not there
  redis://HOST/0?stream=S&maxlen=N  Redis Streams
  amqp://HOST/VHOST?queue=Q         RabbitMQ; or ?exchange=E&key=K
  mqtt://HOST?topic=T               MQTT 5, QoS 1
  kafka://HOST?topic=T              Kafka
  https://HOST/PATH?secret=whsec_S  a webhook: CloudEvents, signed as Standard Webhooks

With TLS: tls://, rediss://, amqps://, mqtts://, https://, and tls=true for kafka;
ca=FILE.pem trusts the authorities in the file instead of the system's.`

// bridgeOptions are bridge's flags.
type bridgeOptions struct {
	selection
	waiting
	to, group, from                         string
	inFlight, attempts                      int
	reset, strict, stopAtEnd, stopOnRefusal bool
}

func newBridge(a *app) *cobra.Command {
	var o bridgeOptions
	cmd := &cobra.Command{
		Use:   "bridge TOPIC --to URL --group NAME",
		Short: "Take a topic's rows to a broker, a webhook, a file or a program",
		Long: `Sends the rows of TOPIC, those that are there and those that come, to the URL, until
Ctrl-C or --stop-at-end. It goes on where the group was; how far it came is stored
after the destination has confirmed the rows. A second bridge of the same group is a
hot standby.

` + destinations + `

A URL with a password in it belongs into ` + envTo + ` rather than on the command line.

A destination that goes away is waited for. A row that it refuses (too large, say)
goes to the group's dead letters after --attempts, or with --stop-on-refusal ends the
bridge. While there is a backlog, progress is shown: a bar on a terminal, else a line
of the log every 10 s. It can be stopped and goes on there.`,
		Example: `  mqnotify bridge orders --group nats --to 'nats://127.0.0.1:4222/?stream=orders'
  mqnotify bridge orders --group archive --to 'file:///var/lib/shop/orders.jsonl?rotate=100MB'
  mqnotify bridge stock --group redis --to redis://127.0.0.1/0 --from beginning --stop-at-end`,
		Args:              oneName("TOPIC"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.bridge(cmd.Context(), o, args[0])
		},
	}
	o.selection.register(cmd)
	o.selection.registerAnyKey(cmd)
	o.waiting.register(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.to, "to", "", "where to: a `URL`; "+envTo+" if it is not given")
	flags.StringVar(&o.group, "group", "", "go on where this `name` was, and store how far it came")
	flags.StringVar(&o.from, "from", fromBeginning, "where a new group begins: beginning, end, \"last 10\", an id,\n"+
		"a time (2026-01-31T08:00:00Z), or a time ago (90m)")
	flags.IntVar(&o.inFlight, "in-flight", 0, "how many rows may be under way unconfirmed; 0 is the destination's\nown number (100 to 8000, 1 for a webhook)")
	flags.IntVar(&o.attempts, "attempts", 3, "how often a row that is refused is sent")
	flags.BoolVar(&o.stopOnRefusal, "stop-on-refusal", false, "end at a row that is refused, with the offset before it")
	flags.BoolVar(&o.reset, "reset", false, "begin at --from although the group has an offset")
	flags.BoolVar(&o.strict, "strict", false, "in the order of the ids: a transaction that stays open holds up\nall that came after it (always so for redis)")
	flags.BoolVar(&o.stopAtEnd, "stop-at-end", false, "end when there is no more")
	a.registerMetrics(cmd)
	a.registerInherit(cmd, "a program (exec:)")
	completeNothing(cmd, "to", "group", "in-flight", "attempts")
	completeWith(cmd, "from", fromBeginning, fromEnd)
	return cmd
}

func (a *app) bridge(ctx context.Context, o bridgeOptions, topic string) error {
	to, err := a.destination(o.to, topic)
	if err != nil {
		return err
	}
	options, err := o.check(a)
	if err != nil {
		return err
	}
	db, err := a.open()
	if err != nil {
		return err
	}
	defer closeDB(db)
	setRedisLog(a.log)
	shown := a.newProgress(topic, a.drawsProgress())
	defer shown.end()
	m, err := a.measure(ctx, db)
	if err != nil {
		return err
	}
	defer m.stop()
	var sent, dead atomic.Uint64
	m.count("mqnotify_bridge_messages_total", "Messages that the destination has confirmed, and those that went to the dead letters.",
		prometheus.Labels{"topic": topic}, "outcome", []string{"sent", "dead"}, func() []uint64 { return []uint64{sent.Load(), dead.Load()} })
	if err := m.groups(db, topic, options.Consumer.Key); err != nil {
		return err
	}
	options.Consumer.Woken = m.readers.Topic(topic).Woken
	options.Consumer.Waiting = shown.waits
	options.Report = func(p bridge.Progress) {
		sent.Store(uint64(p.Sent))
		dead.Store(uint64(p.Dead))
		shown.report(p)
	}
	b, err := bridge.New(db, topic, to, options)
	if err != nil {
		return err
	}
	return a.ended(b.Run(ctx))
}

// ended ends the command quietly when the reader of stdout has ended.
func (a *app) ended(err error) error {
	var broken outputError
	if errors.As(err, &broken) {
		return ignoreBrokenPipe(broken)
	}
	return err
}

// check reads the flags.
func (o *bridgeOptions) check(a *app) (bridge.Options, error) {
	options := bridge.Options{Logger: a.log, Consumer: o.options(a)}
	c := &options.Consumer
	if _, err := position.Parse(o.from); err != nil {
		return options, usagef("--from: %w", err)
	}
	c.From = o.from
	if err := o.waiting.into(c); err != nil {
		return options, err
	}
	switch {
	case o.group == "":
		return options, usagef("--group: name what stores how far the bridge came")
	case o.inFlight < 0:
		return options, usagef("--in-flight %d: 0 or more", o.inFlight)
	case o.attempts < 1:
		return options, usagef("--attempts %d: 1 or more", o.attempts)
	}
	c.Group, c.Reset, c.StopAtEnd = o.group, o.reset, o.stopAtEnd
	if o.strict {
		c.Strict = true
	}
	options.InFlight, options.MaxAttempts, options.StopOnPoison = o.inFlight, o.attempts, o.stopOnRefusal
	return options, nil
}

// destination reads the URL; what is secret in it never shows.
func (a *app) destination(text, topic string) (*bridge.Destination, error) {
	text, err := a.secretURL("to", text, envTo)
	if err != nil {
		return nil, err
	}
	if text == "stdout" || text == "-" {
		return bridge.Writer(brokenStdout{a.out}), nil
	}
	to, err := bridge.Parse(text, topic)
	if err != nil {
		return nil, usageError{err}
	}
	return to, nil
}

// brokenStdout makes a failure to write an outputError.
type brokenStdout struct {
	to interface{ Write([]byte) (int, error) }
}

func (b brokenStdout) Write(p []byte) (int, error) {
	n, err := b.to.Write(p)
	if err != nil {
		err = outputError{fmt.Errorf("print: %w", err)}
	}
	return n, err
}

// secretURL is a flag's URL, or the environment's.
func (a *app) secretURL(flag, text, env string) (string, error) {
	if text == "" {
		text = a.getenv(env)
	}
	if text == "" {
		return "", usagef("--%s: give a URL, or set %s", flag, env)
	}
	if shown := redact.URL(text); shown != text {
		a.stderr.hide(text, shown)
	}
	if u, err := url.Parse(text); err == nil {
		if password, _ := u.User.Password(); password != "" {
			a.stderr.hide(":"+password+"@", ":***@")
		}
	}
	return text, nil
}
