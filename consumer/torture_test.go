package consumer

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// The invariant: however writers commit, roll back, skip ids and delay, and
// however often a reader is killed, every committed row is delivered, to each
// group at least once, and to a handler in a transaction exactly once.
func TestTorture(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own, all := s, []string{writersUnknown}
		if !testing.Short() { // such a load would disturb other tests
			own, all = s.Start(t), ways(s)
		}
		for _, writers := range all {
			t.Run(writers, func(t *testing.T) {
				t.Parallel()
				lost := torture(t, own, tortureReader{Writers: writers, Grace: slowest + 5*time.Second, Kill: true}, tortureSize{
					Rows:  mysqltest.Many(200, 1000, 1_000_000/len(all)),
					Kills: mysqltest.Many(0, 0, 1000/len(all)),
				})
				require.Empty(t, lost, "rows were lost")
			})
		}
		// Without gaps the same test loses rows, which shows that it can fail.
		t.Run("without gaps", func(t *testing.T) {
			t.Parallel()
			// A reader that begins after the writers have ended, because the machine is busy, loses nothing.
			mysqltest.Eventually(t, "a reader without gaps loses rows, or the test shows nothing", func() bool {
				return len(torture(t, own, tortureReader{ForgetGaps: true}, tortureSize{Rows: mysqltest.Many(200, 1000, 1000)})) > 0
			})
		})
	})
}

const (
	tortureWriters = 8
	// slowest is the approximate maximum time of a writer's transaction.
	slowest = 4 * time.Second
)

// tortureReader is the input of a reader's process.
type tortureReader struct {
	DSN        string
	Group      string
	Tx         bool // handle in a transaction
	Writers    string
	Grace      time.Duration
	ForgetGaps bool
	Kill       bool // kill the readers at random
}

// tortureSize is the minimum size of a torture: in the long form 10^6 rows and 10^3 kills on each server.
type tortureSize struct{ Rows, Kills int }

const tortureEnv = "MQNOTIFY_TORTURE_READER"

// torture runs writers and readers and returns the ids that were lost.
func torture(t *testing.T, s *mysqltest.Server, reader tortureReader, size tortureSize) (lost []uint64) {
	config := s.Database(t)
	db := openConfig(t, config, "orders")
	for _, statement := range []string{
		"ALTER TABLE orders ADD k INT NULL UNIQUE", // for upserts
		"CREATE TABLE seen_once (id BIGINT UNSIGNED NOT NULL)",
		"CREATE TABLE seen_tx (id BIGINT UNSIGNED NOT NULL)",
	} {
		_, err := db.Pool().ExecContext(t.Context(), statement)
		require.NoError(t, err)
	}
	reader.DSN = config.FormatDSN()
	once, tx := reader, reader
	once.Group, tx.Group, tx.Tx = "once", "tx", true
	var kills atomic.Int64
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var readers sync.WaitGroup
	defer readers.Wait()
	defer stop()
	for _, r := range []tortureReader{once, tx} {
		readers.Go(func() { keepReading(ctx, t, r, &kills) })
	}

	var jump atomic.Uint64
	var crew []*tortureWriter
	for n := range tortureWriters {
		random := mysqltest.RandomOf(fmt.Sprint(t.Name(), n))
		crew = append(crew, &tortureWriter{t: t, config: config, jump: &jump, n: n, random: random})
	}
	var committed []uint64
	more := mysqltest.Many(500*time.Millisecond, 2500*time.Millisecond, time.Minute)
	// Continue until the size is reached.
	for ; (len(committed) <= size.Rows || int(kills.Load()) < size.Kills) && !t.Failed(); more = mysqltest.Many(time.Second, time.Second, 10*time.Second) {
		until := time.Now().Add(more)
		var writers sync.WaitGroup
		for _, w := range crew {
			writers.Go(func() { w.run(t.Context(), until) })
		}
		writers.Wait()
		committed = nil
		require.NoError(t, db.Pool().SelectContext(t.Context(), &committed, "SELECT id FROM orders ORDER BY id"))
	}
	missing := func(table string) []uint64 {
		var ids []uint64
		require.NoError(t, db.Pool().SelectContext(t.Context(), &ids,
			"SELECT id FROM orders WHERE id NOT IN (SELECT id FROM "+table+") ORDER BY id"))
		return ids
	}
	deadline := time.Now().Add(reader.Grace + patience)
	passed := func(table string) bool { // what is missing when the last row was handled never comes without gaps
		return mysqltest.Value[bool](t, db.Pool(), "SELECT MAX(o.id) IN (SELECT id FROM "+table+") FROM orders o")
	}
	for least := math.MaxInt; time.Now().Before(deadline); {
		over := reader.ForgetGaps && passed("seen_once") && passed("seen_tx")
		if lost = append(missing("seen_once"), missing("seen_tx")...); len(lost) == 0 || over {
			break
		}
		if len(lost) < least && !reader.ForgetGaps { // they come, however slowly
			least, deadline = len(lost), time.Now().Add(reader.Grace+patience)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	stop()
	readers.Wait()
	var handled, distinct, redelivered int
	require.NoError(t, db.Pool().GetContext(t.Context(), &handled, "SELECT COUNT(*) FROM seen_tx"))
	require.NoError(t, db.Pool().GetContext(t.Context(), &distinct, "SELECT COUNT(DISTINCT id) FROM seen_tx"))
	require.NoError(t, db.Pool().GetContext(t.Context(), &redelivered, "SELECT COUNT(*) - COUNT(DISTINCT id) FROM seen_once"))
	if len(lost) > 0 && !reader.ForgetGaps {
		query, args, err := sqlx.In("SELECT CONCAT(id, ' ', LEFT(payload, 20)) FROM orders WHERE id IN (?)", lost)
		require.NoError(t, err)
		var what []string
		require.NoError(t, db.Pool().SelectContext(t.Context(), &what, query, args...))
		t.Logf("lost: %v", what)
	}
	t.Logf("%d rows committed; of two groups, each lost %.1f %% on average; %d readers killed; %d rows handled again by the first group, %d by the one in a transaction",
		len(committed), 50*float64(len(lost))/float64(max(1, len(committed))), kills.Load(), redelivered, handled-distinct)
	require.Equal(t, distinct, handled, "rows were handled twice in a transaction")
	return lost
}

// keepReading runs a reader's process until the context ends. It kills it at
// random if that is asked for.
func keepReading(ctx context.Context, t *testing.T, r tortureReader, kills *atomic.Int64) {
	random := mysqltest.RandomOf(t.Name() + r.Group)
	told, err := json.Marshal(r)
	if err != nil {
		t.Error(err)
		return
	}
	for n := 0; ctx.Err() == nil; n++ {
		life, end := context.WithCancel(ctx)
		if r.Kill {
			lasts := (300 + time.Duration(random.IntN(1200))) * time.Millisecond * time.Duration(10+min(n, 15)) / 10
			if n%8 == 7 { // Gaps settle by time where the writers are unknown, and the time begins again with each process.
				lasts += 2 * r.Grace
			}
			life, end = context.WithTimeout(ctx, lasts)
		}
		command := exec.CommandContext(life, os.Args[0]) // killed with SIGKILL at the context's end
		command.Env = append(os.Environ(), tortureEnv+"="+string(told))
		out, err := command.CombinedOutput()
		if life.Err() == nil {
			t.Errorf("reader ended by itself: %v\n%s", err, out)
			end()
			return
		}
		kills.Add(1)
		end()
	}
}

// tortureReaderMain is the reader's process.
func tortureReaderMain(told string) error {
	var r tortureReader
	if err := json.Unmarshal([]byte(told), &r); err != nil {
		return err
	}
	db, err := notify.Open(r.DSN)
	if err != nil {
		return err
	}
	c, err := New(db, "orders", Options{
		Group: r.Group, From: "beginning", Writers: r.Writers, Grace: r.Grace, forgetGaps: r.ForgetGaps,
		PageRows: 200, FlushInterval: 20 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
	if err != nil {
		return err
	}
	note := func(ctx context.Context, db notify.Tx, table string, messages []Message) error {
		values := strings.TrimSuffix(strings.Repeat("(?),", len(messages)), ",")
		args := make([]any, len(messages))
		for i, m := range messages {
			args[i] = m.ID
		}
		_, err := db.ExecContext(ctx, "INSERT INTO "+table+" (id) VALUES "+values, args...)
		return err
	}
	handler := Batch(func(ctx context.Context, messages []Message) error {
		return note(ctx, db.Pool(), "seen_once", messages)
	})
	if r.Tx {
		handler = BatchTx(func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
			return note(ctx, tx, "seen_tx", messages)
		})
	}
	return c.Run(context.Background(), handler)
}

// tortureWriter writes in every way that makes ids appear out of order.
type tortureWriter struct {
	t      *testing.T
	config *mysql.Config
	jump   *atomic.Uint64
	n      int
	random *rand.Rand
	serial int
}

func (w *tortureWriter) run(ctx context.Context, until time.Time) {
	connector, err := mysql.NewConnector(w.config)
	if err != nil {
		w.t.Error(err)
		return
	}
	db := sql.OpenDB(connector)
	defer db.Close()
	db.SetMaxIdleConns(0) // a connection a transaction: session settings must not stay
	for time.Now().Before(until) && !w.t.Failed() {
		if err := w.transaction(ctx, db); err != nil && !retryable(err) {
			w.t.Errorf("writer: %v", err)
			return
		}
	}
}

func retryable(err error) bool { // upserts deadlock with one another
	var failed *mysql.MySQLError
	return errors.As(err, &failed) && slices.Contains([]uint16{1213, 1205, 1062, 1614}, failed.Number)
}

func (w *tortureWriter) transaction(ctx context.Context, db *sql.DB) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { conn.Close() }() // whichever it is at the end
	if w.n%3 == 0 {
		if _, err := conn.ExecContext(ctx, "SET SESSION auto_increment_increment = 3"); err != nil {
			return err
		}
	}
	commit := w.random.IntN(10) > 0 // one of ten rolls back
	begin, end := "START TRANSACTION", "COMMIT"
	if !commit {
		end = "ROLLBACK"
	}
	xid := ""
	if w.random.IntN(8) == 0 {
		w.serial++
		xid = fmt.Sprintf("'%s-%d-%d'", w.config.DBName, w.n, w.serial)
		begin, end = "XA START "+xid, "XA "+end+" "+xid
	}
	if _, err := conn.ExecContext(ctx, begin); err != nil {
		return err
	}
	for range 1 + w.random.IntN(3) {
		statement := w.insert()
		if xid != "" {
			statement = strings.ReplaceAll(statement, "'slow'", "'XA slow'")
			statement = strings.ReplaceAll(statement, "'x'", "'XA x'")
		}
		if _, err = conn.ExecContext(ctx, statement); err != nil {
			break
		}
	}
	if err != nil && xid == "" {
		_, _ = conn.ExecContext(ctx, "ROLLBACK")
		return err
	}
	if w.random.IntN(4) == 0 {
		w.sleep(ctx, conn, 0.3)
	}
	if xid == "" {
		_, err = conn.ExecContext(ctx, end)
		return err
	}
	if err != nil {
		_, _ = conn.ExecContext(ctx, "XA END "+xid)
		_, _ = conn.ExecContext(ctx, "XA ROLLBACK "+xid)
		return err
	}
	for _, statement := range []string{"XA END " + xid, "XA PREPARE " + xid} {
		if _, err := conn.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	if w.random.IntN(2) == 0 { // its session goes; another one decides
		conn.Close()
		if conn, err = db.Conn(ctx); err != nil {
			return err
		}
		w.sleep(ctx, conn, 0.2)
	}
	for begun := time.Now(); time.Since(begun) < patience; { // the server may not have let the first session go yet (1397)
		if _, err = conn.ExecContext(ctx, end); err == nil {
			return nil
		}
		w.sleep(ctx, conn, 0.05)
	}
	return fmt.Errorf("%s: %w", end, err)
}

// sleep makes the server sleep while the transaction holds its locks.
func (w *tortureWriter) sleep(ctx context.Context, conn *sql.Conn, most float64) {
	_, _ = conn.ExecContext(ctx, fmt.Sprintf("DO SLEEP(%f)", w.random.Float64()*most))
}

// insert is one statement that takes ids, 1 to 50 of them.
func (w *tortureWriter) insert() string {
	rows := func(n int, row func(i int) string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = row(i)
		}
		return strings.Join(all, ", ")
	}
	plain := func(int) string { return "('x')" }
	switch pick := w.random.IntN(100); {
	case pick < 40:
		return "INSERT INTO orders (payload) VALUES ('x')"
	case pick < 65:
		return "INSERT INTO orders (payload) VALUES " + rows(1+w.random.IntN(50), plain)
	case pick < 85: // skips the ids of those that are there already
		return "INSERT INTO orders (payload, k) VALUES " + rows(1+w.random.IntN(10), func(int) string {
			return fmt.Sprintf("('k', %d)", w.random.IntN(200))
		}) + " ON DUPLICATE KEY UPDATE payload = VALUES(payload)"
	case pick < 97: // sleeps between its rows, with neither row nor lock for the ids it took
		pause := w.random.Float64() * 0.02
		if w.random.IntN(12) == 0 {
			pause = 0.7 // seconds between the first and the last
		}
		return "INSERT INTO orders (payload) VALUES " + rows(3, func(i int) string {
			if i == 0 {
				return "('slow')"
			}
			return fmt.Sprintf("(CONCAT('slow', SLEEP(%f)))", pause)
		})
	default: // jumps ahead of everybody
		return fmt.Sprintf("INSERT INTO orders (id, payload) VALUES (%d, 'jump')", w.jump.Add(1)*1_000_000)
	}
}
