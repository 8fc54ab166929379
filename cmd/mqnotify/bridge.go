package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"sync/atomic"

	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/redact"
)

// Environment variables for URLs that contain a password.
const (
	envTo   = "MQNOTIFY_TO"
	envFrom = "MQNOTIFY_FROM"
)

// fromBeginning is the default of bridge's --from: the rows that exist are sent too.
const fromBeginning = "beginning"

// destinations lists the URLs of --to, for the help text.
const destinations = `  stdout                            lines of JSON
  file:///PATH?rotate=100MB&keep=9  lines of JSON; they count as sent after fsync
  exec:PROGRAM%20ARG                a program: it reads a line of JSON for each row from stdin,
                                    and writes the id to stdout when it has stored the row
  nats://HOST?stream=S&subject=T    NATS JetStream; the bridge makes the stream if it does not exist
  redis://HOST/0?stream=S&maxlen=N  Redis Streams
  amqp://HOST/VHOST?queue=Q         RabbitMQ; or ?exchange=E&key=K
  mqtt://HOST?topic=T               MQTT 5, QoS 1
  kafka://HOST?topic=T              Kafka
  https://HOST/PATH?secret=whsec_S  a webhook: CloudEvents, signed as Standard Webhooks

With TLS: tls://, rediss://, amqps://, mqtts://, https://, and tls=true for kafka.
ca=FILE.pem trusts the authorities in the file instead of the system's.`

type bridgeOptions struct {
	selection
	to, group, from                         string
	inFlight, attempts                      int
	reset, strict, stopAtEnd, stopOnRefusal bool
}

func newBridge(a *app) *cobra.Command {
	var o bridgeOptions
	cmd := &cobra.Command{
		Use:   "bridge TOPIC --to URL --group NAME",
		Short: "Send a topic's rows to a broker, a webhook, a file or a program",
		Long: `Sends the existing and all new rows of TOPIC to the URL, until Ctrl-C or --stop-at-end. It
stores the group's offset after the destination has confirmed the rows, and continues from
there at the next start. A second bridge of the same group is a hot standby.

` + destinations + `

Other users of the machine see the command line: put a URL with a password into
` + envTo + `.

The bridge waits for a destination that is away. A row that the destination refuses (because it
is too large, for example) goes to the group's dead letters after --attempts, or with
--stop-on-refusal ends the bridge. While there is a backlog the bridge shows its progress: a bar
on a terminal, else a log line every 10 s.`,
		Example: `  mqnotify bridge orders --group nats --to 'nats://127.0.0.1:4222/?stream=orders'
  mqnotify bridge orders --group archive --to 'file:///var/lib/shop/orders.jsonl?rotate=100MB'
  mqnotify bridge stock --group redis --to redis://127.0.0.1/0 --from beginning --stop-at-end`,
		Args: oneName("TOPIC"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.bridge(cmd.Context(), o, args[0])
		},
	}
	o.selection.register(cmd)
	o.selection.registerAnyKey(cmd)
	flags := cmd.Flags()
	flags.StringVar(&o.to, "to", "", "the destination's `URL`; default "+envTo+"")
	flags.StringVar(&o.group, "group", "", "the group's `name`: continue at its offset, and store the offset")
	flags.StringVar(&o.from, "from", fromBeginning, "where a new group begins: beginning, end, \"last 10\", an id,\n"+
		"a time (2026-01-31T08:00:00Z), or a time ago (90m)")
	flags.IntVar(&o.inFlight, "in-flight", 0, "how many sent rows may be unconfirmed; 0 is the destination's default\n(100 to 8000, 1 for a webhook)")
	flags.IntVar(&o.attempts, "attempts", 3, "how often a refused row is sent")
	flags.BoolVar(&o.stopOnRefusal, "stop-on-refusal", false, "end at a refused row, with the offset before it")
	flags.BoolVar(&o.reset, "reset", false, "begin at --from even if the group has an offset")
	flags.BoolVar(&o.strict, "strict", false, "send in the order of the ids: an open transaction delays all rows\nafter its own (redis: always)")
	flags.BoolVar(&o.stopAtEnd, "stop-at-end", false, "end when all existing rows are sent")
	a.registerMetrics(cmd)
	a.registerInherit(cmd, "a program (exec:)")
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
	m.count("mqnotify_bridge_messages_total", "Messages that the destination confirmed (sent), or that went to the dead letters (dead).",
		"topic", topic, map[string]*atomic.Uint64{"sent": &sent, "dead": &dead})
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
	err = b.Run(ctx)
	var broken outputError
	if errors.As(err, &broken) {
		return ignoreBrokenPipe(broken)
	}
	return err
}

// check validates the flags and converts them to options.
func (o *bridgeOptions) check(a *app) (bridge.Options, error) {
	options := bridge.Options{Logger: a.log}
	if _, err := position.Parse(o.from); err != nil {
		return options, usagef("--from: %w", err)
	}
	c, err := o.options(a)
	switch {
	case err != nil:
		return options, err
	case o.group == "":
		return options, usagef("--group: name the group, whose offset the bridge stores")
	case o.inFlight < 0:
		return options, usagef("--in-flight %d: 0 or more", o.inFlight)
	case o.attempts < 1:
		return options, usagef("--attempts %d: 1 or more", o.attempts)
	}
	c.Group, c.Reset, c.StopAtEnd, c.Strict = o.group, o.reset, o.stopAtEnd, o.strict
	c.From = o.from
	options.Consumer = c
	options.InFlight, options.MaxAttempts, options.StopOnPoison = o.inFlight, o.attempts, o.stopOnRefusal
	return options, nil
}

// destination parses the URL. Its secrets are hidden in logs and errors.
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

// brokenStdout is a writer whose errors are of type outputError.
type brokenStdout struct{ to io.Writer }

func (b brokenStdout) Write(p []byte) (int, error) {
	n, err := b.to.Write(p)
	if err != nil {
		err = outputError{fmt.Errorf("print: %w", err)}
	}
	return n, err
}

// secretURL returns the flag's URL, or if it is empty that of the environment variable. Logs and errors hide its secrets.
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
