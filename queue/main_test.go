package queue

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/internal/waiting"
	"github.com/mqnotify/mqnotify/notify"
)

// stateTables are the tables of mqnotify that most tests of this package need.
var stateTables = []string{schema.QueueTable, schema.TaskTable, schema.TaskKeyTable, schema.ScheduleTable}

func TestMain(m *testing.M) {
	flag.Parse() // Size asks for -short
	busyPoll = mysqltest.Size(250*time.Millisecond, 250*time.Millisecond, busyPoll)
	waiting.Unused = 2 * time.Second
	mysqltest.AsProcess(processEnv, processMain)
	mysqltest.Main(m)
}

const (
	// patience is how long a test waits for an event.
	patience = 40 * time.Second
	// tick is how often it checks.
	tick = 25 * time.Millisecond
)

// each is mysqltest.Each, in parallel, because these tests mostly wait.
var each = mysqltest.Each

// eachMode runs f with both ways to claim: see [mysqltest.EachCase].
func eachMode(t *testing.T, f func(t *testing.T, s *mysqltest.Server, mode string)) {
	t.Helper()
	mysqltest.EachCase(t, []string{claimSkipLocked, claimUpdate}, func(t *testing.T, s *mysqltest.Server, mode string) {
		t.Run(mode, func(t *testing.T) { f(t, s, mode) })
	})
}

func openConfig(tb testing.TB, config *mysql.Config) *notify.DB {
	tb.Helper()
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db
}

// database returns a database of the test with the tables, and the queue "mail".
func database(tb testing.TB, s *mysqltest.Server, options ...Options) (*notify.DB, *mysql.Config) {
	tb.Helper()
	config := s.Database(tb)
	db := openConfig(tb, config)
	schematest.Init(tb, db.Pool(), stateTables)
	require.NoError(tb, Create(tb.Context(), db, "mail", append(options, Options{})[0]))
	return db, config
}

func newQueue(tb testing.TB, db *notify.DB, options Options) *Queue {
	tb.Helper()
	if options.Logger == nil {
		options.Logger = testLogger(tb)
	}
	q, err := New(db, "mail", options)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, q.Close()) })
	return q
}

func enqueue(tb testing.TB, q *Queue, payloads ...string) []uint64 {
	tb.Helper()
	entries := make([]Entry, len(payloads))
	for i, p := range payloads {
		entries[i].Payload = []byte(p)
	}
	ids, err := q.Enqueue(tb.Context(), entries...)
	require.NoError(tb, err)
	return ids
}

// running is a worker that runs in parallel with the test.
type running struct {
	*worker
	counts
	stop context.CancelFunc
	done chan struct{}
	err  error
}

// counts are the calls of WorkerOptions.Count.
type counts struct {
	mu  sync.Mutex
	all map[string]int
}

func (c *counts) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all[what]++
}

func (c *counts) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.all[what]
}

// outcomes returns the counts of attempts.
func (c *counts) outcomes() map[string]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := maps.Clone(c.all)
	delete(all, "retried")
	return all
}

func work(tb testing.TB, q *Queue, options WorkerOptions, handler handler) *running {
	tb.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(tb.Context()))
	r := &running{counts: counts{all: map[string]int{}}, stop: cancel, done: make(chan struct{})}
	options.Count = r.count
	w, err := newWorker(q, options)
	require.NoError(tb, err)
	r.worker = w
	go func() {
		defer close(r.done)
		r.err = w.run(ctx, handler)
	}()
	tb.Cleanup(func() {
		cancel()
		<-r.done
	})
	return r
}

// end stops the worker and returns what Run returned.
func (r *running) end(tb testing.TB) error {
	tb.Helper()
	r.stop()
	return r.wait(tb)
}

func (r *running) wait(tb testing.TB) error {
	tb.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		tb.Fatal("the worker does not end")
	}
	return r.err
}

// collected are the tasks that a handler has received.
type collected struct {
	mu  sync.Mutex
	all []Task
}

func (c *collected) handle(_ context.Context, task Task) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, task)
	return nil
}

func (c *collected) tasks() []Task {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.all)
}

func (c *collected) payloads() []string {
	var payloads []string
	for _, t := range c.tasks() {
		payloads = append(payloads, string(t.Payload))
	}
	return payloads
}

// waitFor waits until exactly these tasks have come.
func (c *collected) waitFor(tb testing.TB, payloads ...string) {
	tb.Helper()
	eventually(tb, func() bool { return len(c.payloads()) >= len(payloads) }, fmt.Sprintf("these payloads: %q", payloads))
	require.Equal(tb, payloads, c.payloads())
}

func eventually(tb testing.TB, is func() bool, what string) {
	tb.Helper()
	mysqltest.Eventually(tb, what, is)
}

// inState returns how many tasks are in a state.
func inState(tb testing.TB, db *notify.DB, state string) int {
	tb.Helper()
	return mysqltest.Value[int](tb, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task WHERE state = ?", state)
}

// finished inserts n done tasks.
func finished(tb testing.TB, db *notify.DB, n int) {
	tb.Helper()
	const columns = "(queue, state, state_at, attempts, owner, payload)"
	mysqltest.Exec(tb, db.Pool(), "INSERT INTO mqnotify_task "+columns+" VALUES ('mail', 'done', UTC_TIMESTAMP(6), 1, 'host:1-abcdef', 'a short payload')")
	for have := 1; have < n; {
		mysqltest.Exec(tb, db.Pool(), "INSERT INTO mqnotify_task "+columns+" SELECT queue, state, state_at, attempts, owner, payload FROM mqnotify_task"+
			" WHERE state = 'done' LIMIT ?", min(n-have, 100_000))
		have = inState(tb, db, stateDone)
	}
}

func testLogger(tb testing.TB) *slog.Logger { return mysqltest.Logger(tb, slog.LevelInfo) }
