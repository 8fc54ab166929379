package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"

	"github.com/mqnotify/mqnotify/bridge"
)

// origins lists the URLs of --from, for the help text.
const origins = `  nats://HOST?stream=S              a JetStream stream; also subject=, consumer=
  redis://HOST/0?stream=S           a Redis stream; also group=
  amqp://HOST/VHOST?queue=Q         a RabbitMQ queue
  mqtt://HOST?topic=T               an MQTT 5 topic or filter; also client=

With TLS: tls://, rediss://, amqps:// and mqtts://. ca=FILE.pem trusts the authorities in
the file instead of the system's.`

type importOptions struct {
	from, into string
	batch      int
	keep       time.Duration
}

func newImport(a *app) *cobra.Command {
	var o importOptions
	cmd := &cobra.Command{
		Use:   "import --from URL --into TOPIC",
		Short: "Insert a broker's messages into a topic, each once",
		Long: `Receives messages from the URL and inserts them into TOPIC, until Ctrl-C. Each is inserted once:
import stores the broker's id of a message in the same transaction (table mqnotify_import), and
acknowledges the message after the commit. If import dies in between, the broker sends the
message again, and import recognizes its id.

` + origins + `

The id is the sequence number in a JetStream stream, the entry's id in Redis, the property
message-id in AMQP, and the user property message-id in MQTT. A message without an id may be
stored twice. Ids of brokers at different addresses are distinct, except JetStream's.

Other users of the machine see the command line: put a URL with a password into ` + envFrom + `.
import waits for a broker or a database that is away.`,
		Example: `  mqnotify import --from 'nats://127.0.0.1:4222/?stream=payments' --into payments
  mqnotify import --from 'amqp://127.0.0.1/?queue=mails' --into mails --keep 72h`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.importFrom(cmd.Context(), o)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.from, "from", "", "the broker's `URL`; default "+envFrom)
	flags.StringVar(&o.into, "into", "", "the `TOPIC` to insert into")
	flags.IntVar(&o.batch, "batch", 500, "insert at most this many messages in one transaction")
	flags.DurationVar(&o.keep, "keep", 7*24*time.Hour, "how long ids are kept: a message that the broker sends again later\nis stored twice")
	a.registerMetrics(cmd)
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
	p := &imported{app: a, topic: o.into, last: time.Now()}
	m.count("mqnotify_imported_messages_total", "Messages received from the broker: new ones that were stored (stored), and ones that had been stored before (known).",
		"topic", o.into, map[string]*atomic.Uint64{"stored": &p.messages, "known": &p.known})
	i, err := bridge.NewImport(db, from, o.into, bridge.ImportOptions{
		Batch: o.batch, Keep: o.keep, Logger: a.log, Stored: p.stored,
	})
	if err != nil {
		return err
	}
	if err = i.Run(ctx); err == nil || p.all() > 0 {
		p.log("imported")
	}
	return err
}

// imported counts the messages and logs the counts every 10 s. Brokers do not report how many messages are left, so there is no
// progress bar.
type imported struct {
	app             *app
	topic           string
	messages, known atomic.Uint64
	last            time.Time // of the last log line
	shown           uint64    // the number of messages then
}

func (i *imported) all() uint64 { return i.messages.Load() + i.known.Load() }

// stored implements bridge.ImportOptions.Stored.
func (i *imported) stored(now, there int) {
	i.messages.Add(uint64(now))
	i.known.Add(uint64(there))
	if took := time.Since(i.last); took >= progressEvery {
		all := i.all()
		i.log("imported so far", "messages_per_second", int(float64(all-i.shown)/took.Seconds()))
		i.last, i.shown = time.Now(), all
	}
}

func (i *imported) log(message string, more ...any) {
	attributes := append([]any{"topic", i.topic, "messages", i.messages.Load(), "there_already", i.known.Load()}, more...)
	i.app.log.InfoContext(context.Background(), message, attributes...)
}

// setRedisLog sends the Redis client's own output to the debug log, because errors contain the same information. The client has
// one logger for the whole process, which is set once; commands that run at the same time, as in tests, share the log that was
// set last.
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
