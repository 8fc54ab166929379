package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/bridge"
	"github.com/mqnotify/mqnotify/notify"
)

// origins says which URLs --from takes.
const origins = `  nats://HOST?stream=S              a JetStream stream; also subject=, consumer=
  redis://HOST/0?stream=S           a Redis stream; also group=
  amqp://HOST/VHOST?queue=Q         a RabbitMQ queue
  mqtt://HOST?topic=T               an MQTT 5 topic or filter; also client=

With TLS: tls://, rediss://, amqps:// and mqtts://; ca=FILE.pem trusts the authorities in
the file instead of the system's.`

// importOptions are import's flags.
type importOptions struct {
	from, into string
	batch      int
	keep       time.Duration
}

func newImport(a *app) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import --from URL --into TOPIC",
		Short: "Bring a broker's messages into a topic, each once",
		Long: `Takes the messages of the URL into TOPIC, until Ctrl-C. Each is inserted once: its
broker's id is stored in the transaction that inserts it (table mqnotify_import), and
it is acknowledged after the commit. What dies in between comes again, and is known.

` + origins + `

The id is the sequence in a JetStream stream, the entry's id in Redis, and with AMQP
and MQTT what the publisher calls it: message-id, or the user property message-id. A
message without one may be stored twice. Ids are kept apart by the server's address.

A URL with a password in it belongs into ` + envFrom + ` rather than on the command line.
A broker or a database that goes away is waited for.`,
		Example: `  mqnotify import --from 'nats://127.0.0.1:4222/?stream=payments' --into payments
  mqnotify import --from 'amqp://127.0.0.1/?queue=mails' --into mails --keep 72h`,
		Args:              cobra.NoArgs,
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.importFrom(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "where from: a `URL`; "+envFrom+" if it is not given")
	flags.StringVar(&o.into, "into", "", "the `TOPIC`")
	flags.IntVar(&o.batch, "batch", 500, "the most messages in one transaction")
	flags.DurationVar(&o.keep, "keep", 7*24*time.Hour, "how long ids are remembered: a message that comes again later\nis stored twice")
	a.registerMetrics(cmd)
	completeNothing(cmd, "from", "into", "batch", "keep")
	return cmd
}

func (a *app) importFrom(ctx context.Context, o importOptions) error {
	from, err := a.secretURL("from", o.from, envFrom)
	if err != nil {
		return err
	}
	switch {
	case o.into == "":
		return usagef("--into: name the TOPIC")
	case o.batch < 1:
		return usagef("--batch %d: 1 or more", o.batch)
	case o.keep <= 0:
		return usagef("--keep %v: more than 0", o.keep)
	}
	setRedisLog(a.log)
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
	var stored, known atomic.Uint64
	m.count("mqnotify_imported_messages_total", "Messages that came from the broker: those that were stored, and those that were there already.",
		prometheus.Labels{"topic": o.into}, "outcome", []string{"stored", "known"}, func() []uint64 { return []uint64{stored.Load(), known.Load()} })
	p := &imported{app: a, topic: o.into, last: time.Now()}
	i, err := bridge.NewImport(db, from, o.into, bridge.ImportOptions{
		Batch: o.batch, Keep: o.keep, Logger: a.log,
		Stored: func(now, there int) {
			stored.Add(uint64(now))
			known.Add(uint64(there))
			p.stored(now, there)
		},
	})
	if errors.Is(err, notify.ErrOptions) {
		return usageError{err}
	}
	if err != nil {
		return err
	}
	if err = i.Run(ctx); err == nil || p.messages+p.known > 0 {
		p.log("imported")
	}
	return err
}

// imported counts what came, and shows it from time to time: how much is to come no
// broker says.
type imported struct {
	app             *app
	topic           string
	messages, known int
	last            time.Time // when it was shown
	shown           int       // what had come then
}

// stored is for bridge.ImportOptions.Stored.
func (i *imported) stored(now, there int) {
	i.messages, i.known = i.messages+now, i.known+there
	if took := time.Since(i.last); took >= progressEvery {
		all := i.messages + i.known
		i.log("imported so far", "messages_per_second", int(float64(all-i.shown)/took.Seconds()))
		i.last, i.shown = time.Now(), all
	}
}

func (i *imported) log(message string, more ...any) {
	attributes := append([]any{"topic", i.topic, "messages", i.messages, "there_already", i.known}, more...)
	i.app.log.InfoContext(context.Background(), message, attributes...)
}

// setRedisLog makes what the Redis client prints a debug log: what matters of it is in an error too. The client
// has one logger for the process, which is set once; commands that run at the same time, as in tests, share the
// log that was set last.
func setRedisLog(log *slog.Logger) {
	redisLog.Store(log)
	redisPrints()
}

var (
	redisLog    atomic.Pointer[slog.Logger]
	redisPrints = sync.OnceFunc(func() { redis.SetLogger(redisPrinter{}) })
)

type redisPrinter struct{}

func (redisPrinter) Printf(ctx context.Context, format string, v ...any) {
	redisLog.Load().DebugContext(ctx, "redis client", "said", fmt.Sprintf(format, v...))
}
