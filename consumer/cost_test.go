package consumer

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// during returns how many statements a second are sent in a window of time.
func during(tb testing.TB, commands *mysqltest.Commands, window time.Duration) float64 {
	tb.Helper()
	before, start := commands.Statements(), time.Now()
	mysqltest.Window(tb, window)
	return float64(commands.Statements()-before) / time.Since(start).Seconds()
}

// counted opens config again, for a consumer whose statements are counted.
func counted(tb testing.TB, config *mysql.Config) (*notify.DB, *mysqltest.Commands) {
	tb.Helper()
	config = config.Clone()
	commands := mysqltest.CountCommands(config)
	db, err := notify.OpenConfig(config)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, db.Close()) })
	return db, commands
}

// A transaction that stays open delays its own rows and no others. The number of
// statements does not grow: there are as many in the last part of its life as in the
// first.
func openTransactionCostsNoMore(t *testing.T, s *mysqltest.Server) {
	window := mysqltest.Size(200*time.Millisecond, 2*time.Second, 20*time.Second)
	config := s.Database(t)
	db := openConfig(t, config, "orders")
	insert(t, db, "orders", "first")
	polls := newPolls()
	far, commands := counted(t, config)
	var got collected
	c := run(t, far, "orders", Options{From: "beginning", wrap: polls.wrap}, got.handler())
	got.waitFor(t, "first")
	late, aside := newConn(t, db), newConn(t, db)
	onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
	want := []string{"first"}
	more := func() { // rows and gaps that others make meanwhile
		for range mysqltest.Many(20, 50, 50) {
			onConn(t, aside, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')", "ROLLBACK")
			insert(t, db, "orders", "on time")
			want = append(want, "on time")
		}
		got.waitFor(t, want...)
	}
	// Count per poll, because a busy machine makes fewer polls.
	perPoll := func() float64 {
		during(t, commands, window) // the polls become fewer again
		before, statements := polls.n.Load(), commands.Statements()
		eventually(t, func() bool { return polls.n.Load() >= before+mysqltest.Size[int64](2, 4, 4) }, "the reader does not poll for its gaps")
		return float64(commands.Statements()-statements) / float64(polls.n.Load()-before)
	}
	more()
	begin := perPoll()
	more()
	more()
	end := perPoll()
	rate := during(t, commands, window)
	t.Logf("statements a poll while a transaction is open: %.1f at its begin, %.1f at its end, then %.1f a second", begin, end, rate)
	require.LessOrEqual(t, end, begin*1.5+1)
	if !testing.Short() { // the polls have not become fewer yet
		require.Less(t, rate, 30.0)
	}
	onConn(t, late, "COMMIT")
	got.waitFor(t, append(want, "late")...)
	require.NoError(t, c.end(t))
}

// A gap of 10^12 ids needs no memory and no statement per id.
func TestHugeGap(t *testing.T) {
	mysqltest.EachInTurn(t, func(t *testing.T, s *mysqltest.Server) { // it measures the heap
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		far, commands := counted(t, config)
		insert(t, db, "orders", "low")
		var before, after runtime.MemStats
		var got collected
		c := run(t, far, "orders", Options{From: "beginning", Group: "g"}, got.handler())
		got.waitFor(t, "low")
		runtime.GC()
		runtime.ReadMemStats(&before)
		statements := commands.Statements()
		do(t, db, "INSERT INTO orders (id, payload) VALUES (1000000000000, 'high')")
		got.waitFor(t, "low", "high")
		eventually(t, func() bool { return stored(t, db, "g") == 1_000_000_000_000 }, "the gap does not close")
		statements = commands.Statements() - statements
		runtime.GC()
		runtime.ReadMemStats(&after)
		require.Less(t, statements, uint64(500))
		require.Less(t, int64(after.HeapAlloc)-int64(before.HeapAlloc), int64(4<<20))
		require.NoError(t, c.end(t))
	})
}

// A table in which two of three ids are missing needs no more statements than a
// full one with as many rows, in either order.
func sparseTable(t *testing.T, s *mysqltest.Server) {
	config := s.Database(t)
	db := openConfig(t, config, "orders")
	rows := mysqltest.Many(3000, 12_000, 30_000)
	fill(t, db, rows)
	far, commands := counted(t, config)
	require.Equal(t, uint64(rows), mysqltest.Value[uint64](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
	do(t, db, "CREATE TABLE dense LIKE orders", "CREATE TABLE sparse LIKE orders",
		"SET @n = 0", "INSERT INTO dense (id, payload) SELECT ROW_NUMBER() OVER (ORDER BY id), payload FROM orders",
		"INSERT INTO sparse (id, payload) SELECT 3 * id, payload FROM dense")
	for _, order := range []bool{false, true} {
		cost := func(topic string) uint64 {
			before := commands.Statements()
			n := 0
			c := run(t, far, topic, Options{From: "beginning", StopAtEnd: true, Strict: order}, Each(func(context.Context, Message) error {
				n++
				return nil
			}))
			require.NoError(t, c.wait(t))
			require.Equal(t, rows, n)
			return commands.Statements() - before
		}
		dense, sparse := cost("dense"), cost("sparse")
		t.Logf("order %v: %d statements for %d rows in a row, %d with two of three ids missing", order, dense, rows, sparse)
		require.LessOrEqual(t, sparse, 3*dense+50, "a statement for each gap would be two for every three rows")
	}
}

// A reader of a settled backlog asks for the open writers occasionally, not with every page.
func TestBacklogPollsSeldom(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		const rows = 6000
		fill(t, db, rows)
		polls, n := newPolls(), 0
		began := time.Now()
		options := Options{From: "beginning", StopAtEnd: true, PageRows: 100, wrap: polls.wrap}
		c := run(t, db, "orders", options, Batch(func(_ context.Context, messages []Message) error {
			n += len(messages)
			timer := time.NewTimer(12 * time.Millisecond) // longer than the least time between two polls
			defer timer.Stop()
			<-timer.C
			return nil
		}))
		require.NoError(t, c.wait(t))
		require.Equal(t, rows, n)
		most := 4 + int64(time.Since(began)/backlogWait) + polls.old.Load()
		t.Logf("%d polls in %v, %d answers were too old", polls.n.Load(), time.Since(began), polls.old.Load())
		require.LessOrEqual(t, polls.n.Load(), most)
	})
}

// An ALTER TABLE that waits for a writer makes every other statement on the
// table wait. The reader's statements give up after lock_wait_timeout (2 s) and are repeated.
func alterBehindWriter(t *testing.T, s *mysqltest.Server) {
	db := openTopic(t, s)
	insert(t, db, "orders", "first")
	var got collected
	c := run(t, db, "orders", Options{From: "beginning"}, got.handler())
	got.waitFor(t, "first")
	writer, ddl := newConn(t, db), newConn(t, db)
	if s.IsMariaDB() { // its purge keeps a core busy while the ALTER waits, unless it has nothing to do
		const history = "SELECT VARIABLE_VALUE FROM information_schema.GLOBAL_STATUS WHERE VARIABLE_NAME = 'Innodb_history_list_length'"
		eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), history) == 0 }, "the server purges on")
	}
	onConn(t, writer, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('second')")
	altered := make(chan error, 1)
	go func() {
		_, err := ddl.ExecContext(context.WithoutCancel(t.Context()), "ALTER TABLE orders ADD COLUMN more INT NULL")
		altered <- err
	}()
	const behind = "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE LIKE 'Waiting for table%' AND INFO LIKE ?"
	eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), behind, "ALTER%") == 1 }, "the ALTER does not wait")
	const reader = "SELECT COALESCE(MAX(TIME), -1) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND STATE LIKE 'Waiting for table%' AND INFO LIKE 'SELECT%'"
	longest, last, gaveUp := 0, -1, 0
	eventually(t, func() bool {
		now := mysqltest.Value[int](t, db.Pool(), reader)
		if now < last {
			gaveUp++
		}
		longest, last = max(longest, now), now
		return gaveUp == mysqltest.Size(1, 3, 3)
	}, "a statement of the reader waits on, or none does")
	require.LessOrEqual(t, longest, 10, "seconds that a statement of the reader waited")
	onConn(t, writer, "COMMIT")
	require.NoError(t, <-altered)
	got.waitFor(t, "first", "second")
	insert(t, db, "orders", "third")
	got.waitFor(t, "first", "second", "third")
	require.NoError(t, c.end(t))
}

// If a table's ids begin again below the offset, the consumer returns an error that names the
// remedy, at the start and while it runs. A table that was only emptied is no error.
func TestTruncate(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "a", "b", "c")
		var got collected
		var said mysqltest.Text
		log := slog.New(slog.NewTextHandler(&said, nil))
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", Logger: log}, got.handler())
		got.waitFor(t, "a", "b", "c")
		// A head that goes back before the reader waits is noticed minutes later.
		eventually(t, func() bool { return strings.Contains(said.String(), "msg=waiting") }, "it does not wait")
		do(t, db, "DELETE FROM orders")
		insert(t, db, "orders", "d")
		got.waitFor(t, "a", "b", "c", "d")
		insert(t, db, "orders", "e") // comes by a poll that saw rows, so that the next one sees a change
		got.waitFor(t, "a", "b", "c", "d", "e")
		do(t, db, "TRUNCATE TABLE orders")
		err := c.wait(t)
		require.ErrorIs(t, err, ErrBelowOffset)
		require.ErrorContains(t, err, "--reset")

		insert(t, db, "orders", "new")
		var none collected
		require.ErrorIs(t, run(t, db, "orders", Options{Group: "g"}, none.handler()).wait(t), ErrBelowOffset)
		require.Empty(t, none.payloads())
		var again collected
		c = run(t, db, "orders", Options{Group: "g", From: "beginning", Reset: true}, again.handler())
		again.waitFor(t, "new")
		require.NoError(t, c.end(t))

		var dropped collected
		c = run(t, db, "orders", Options{From: "beginning"}, dropped.handler())
		dropped.waitFor(t, "new")
		do(t, db, "DROP TABLE orders")
		require.ErrorIs(t, c.wait(t), notify.ErrNoTable)
	})
}

// Idle polling costs one poll a second; the first row makes the polls frequent.
func TestIdleCost(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		insert(t, db, "orders", "first")
		far, commands := counted(t, config)
		var got collected
		c := run(t, far, "orders", Options{Group: "g", From: "beginning"}, got.handler())
		got.waitFor(t, "first")
		var idle float64
		window := mysqltest.Size(time.Second, 3*time.Second, 3*time.Second)
		eventually(t, func() bool { idle = during(t, commands, window); return idle < 3 }, "the waits do not grow")
		t.Logf("%.1f statements a second when idle", idle)
		// One poll a second before the row, and after it at 10, 20, 40, 70, 120 and 200 ms, unless the machine is busy.
		rows := []string{"first"}
		for begun, busy := time.Now(), 0.0; busy < 15; {
			require.Less(t, time.Since(begun), patience, "the waits do not fall back")
			rows = append(rows, "more")
			insert(t, db, "orders", "more")
			got.waitFor(t, rows...)
			busy = during(t, commands, 300*time.Millisecond)
		}
		require.NoError(t, c.end(t))
	})
}
