package consumer

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/notify"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.FlagTable, schema.OffsetTable, schema.PartitionTable, schema.DeadLetterTable, schema.RetryTable, schema.OriginTable, schema.LeaseTable}

func TestMain(m *testing.M) {
	mysqltest.AsProcess(tortureEnv, tortureReaderMain)
	mysqltest.AsProcess(shareEnv, shareMain)
	mysqltest.AsProcess(producerEnv, producerMain)
	mysqltest.Main(m)
}

// patience is how long a test waits for an event.
const patience = 40 * time.Second

// openTopic gives the test a database of its own with a message table "orders".
func openTopic(tb testing.TB, s *mysqltest.Server) *notify.DB {
	tb.Helper()
	return openConfig(tb, s.Database(tb), "orders")
}

func openConfig(tb testing.TB, config *mysql.Config, topics ...string) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	schematest.Init(tb, db.Pool(), stateTables, topics...)
	return db
}

func insert(tb testing.TB, db *notify.DB, topic string, payloads ...string) {
	tb.Helper()
	for _, payload := range payloads {
		_, err := db.Pool().ExecContext(tb.Context(), "INSERT INTO "+ident.Quote(topic)+" (payload) VALUES (?)", payload)
		require.NoError(tb, err)
	}
}

// running is a consumer that runs in parallel with the test.
type running struct {
	stop context.CancelFunc
	done chan struct{}
	err  error
}

func run(tb testing.TB, db *notify.DB, topic string, options Options, handler Handler) *running {
	tb.Helper()
	if options.Logger == nil {
		options.Logger = testLogger(tb)
	}
	c, err := New(db, topic, options)
	require.NoError(tb, err)
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	r := &running{stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = c.Run(ctx, handler)
	}()
	tb.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// end stops the consumer and returns what Run returned.
func (r *running) end(tb testing.TB) error {
	tb.Helper()
	r.stop()
	return r.wait(tb)
}

// wait returns what Run returns by itself.
func (r *running) wait(tb testing.TB) error {
	tb.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		tb.Fatal("the consumer does not end")
	}
	return r.err
}

// collected are the messages that a handler has received.
type collected struct {
	mu  sync.Mutex
	all []Message
}

func (c *collected) handler() Handler {
	return Each(func(_ context.Context, m Message) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.all = append(c.all, m)
		return nil
	})
}

func (c *collected) payloads() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var payloads []string
	for _, m := range c.all {
		payloads = append(payloads, string(m.Payload))
	}
	return payloads
}

func (c *collected) ids() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return idsOf(c.all)
}

func (c *collected) waitFor(tb testing.TB, payloads ...string) {
	tb.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for late := time.Now().Add(patience); len(c.payloads()) < len(payloads) && time.Now().Before(late); {
		<-tick.C // too late, what has come is shown below
	}
	require.Equal(tb, payloads, c.payloads())
}

func testLogger(tb testing.TB) *slog.Logger { return mysqltest.Logger(tb, slog.LevelDebug) }
