package consumer

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/go-sql-driver/mysql"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/notify"
)

// workers runs a consumer for each kind of handler, each in a group of its own
// that writes the ids it handles into a table of its name.
func workers(tb testing.TB, db *notify.DB, setup *notify.DB) (names []string, stop func()) {
	tb.Helper()
	note := func(ctx context.Context, db notify.Tx, table string, messages []Message) error {
		values := strings.TrimSuffix(strings.Repeat("(?),", len(messages)), ",")
		var args []any
		for _, m := range messages {
			args = append(args, m.ID)
		}
		_, err := db.ExecContext(ctx, "INSERT INTO "+table+" (id) VALUES "+values, args...)
		return err
	}
	handlers := map[string]Handler{
		"one":    Each(func(ctx context.Context, m Message) error { return note(ctx, db.Pool(), "one", []Message{m}) }),
		"page":   Batch(func(ctx context.Context, messages []Message) error { return note(ctx, db.Pool(), "page", messages) }),
		"one_tx": EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error { return note(ctx, tx, "one_tx", []Message{m}) }),
		"page_tx": BatchTx(func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
			return note(ctx, tx, "page_tx", messages)
		}),
	}
	var all []*running
	for name, handler := range handlers {
		do(tb, setup, "CREATE TABLE "+name+" (id BIGINT UNSIGNED NOT NULL)")
		all = append(all, run(tb, db, "orders", Options{
			Group: name, From: "beginning", FlushInterval: 20 * time.Millisecond, PageRows: 20, MaxAttempts: -1, Retry: fastRetries, Logger: quiet,
		}, handler))
		names = append(names, name)
	}
	// A failed first connection would end them.
	eventually(tb, func() bool {
		return mysqltest.Value[int](tb, setup.Pool(), "SELECT COUNT(*) FROM mqnotify_offset") == len(names)
	}, "they do not begin")
	return names, func() {
		for _, r := range all {
			r.stop()
		}
		for _, r := range all {
			if err := r.wait(tb); err != nil {
				require.ErrorIs(tb, err, errUnsaved)
			}
		}
	}
}

func fastRetries() backoff.BackOff {
	return notify.Exponential(5*time.Millisecond, 100*time.Millisecond)
}

// handledTwice waits until every row was handled, and reports by name whether rows were
// handled more than once.
func handledTwice(tb testing.TB, db *notify.DB, names []string) map[string]bool {
	tb.Helper()
	more := make(map[string]bool)
	for _, name := range names {
		for left := math.MaxInt; left > 0; { // as slow as the machine is
			eventually(tb, func() bool {
				before := left
				left = mysqltest.Value[int](tb, db.Pool(), "SELECT COUNT(*) FROM orders WHERE id NOT IN (SELECT id FROM "+name+")")
				return left == 0 || left < before
			}, "%s: rows are not handled", name)
		}
		require.Zero(tb, mysqltest.Value[int](tb, db.Pool(), "SELECT COUNT(*) FROM "+name+" WHERE id NOT IN (SELECT id FROM orders)"), "%s: rows that are none", name)
		more[name] = mysqltest.Value[int](tb, db.Pool(), "SELECT COUNT(*) - COUNT(DISTINCT id) FROM "+name+"") > 0
	}
	return more
}

// These tests need a server of their own: a transaction that stays open for long delays the offsets of consumers of all databases,
// and a server with faults disturbs other tests. One server is enough for all of them.
func TestWithAnOwnServer(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		flags := []string{"--innodb-flush-log-at-trx-commit=1"}
		if s.IsMariaDB() && !testing.Short() { // the flags make each start slower
			flags = append(flags, "--performance-schema=ON", "--performance-schema-instrument=wait/lock/metadata/sql/mdl=ON")
		}
		own := s.Start(t, flags...)
		if s.IsMariaDB() && !testing.Short() {
			t.Run("metadata locks need MySQL", func(t *testing.T) { metadataLocksNeedMySQL(t, own) })
		}
		t.Run("sparse table", func(t *testing.T) { sparseTable(t, own) })
		t.Run("open transaction", func(t *testing.T) { openTransactionCostsNoMore(t, own) })
		t.Run("ALTER behind a writer", func(t *testing.T) { alterBehindWriter(t, own) })
		t.Run("read-only", func(t *testing.T) { readOnlyServer(t, own) })
		t.Run("goes away", func(t *testing.T) { serverGoesAway(t, own) })
		t.Run("killed under load", func(t *testing.T) { serverKilledUnderLoad(t, own) })
	})
}

// A consumer reads from a read-only server. A group can't store its offset there: this is an error at the
// start, and a reason to wait later.
func readOnlyServer(t *testing.T, own *mysqltest.Server) {
	config := own.Database(t)
	admin := openConfig(t, config, "orders")
	insert(t, admin, "orders", "one")
	db, err := notify.OpenConfig(own.User(t, config, "ALL ON "+config.DBName+".*"))
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	var got collected
	c := run(t, db, "orders", Options{Group: "g", From: "beginning", Grace: time.Millisecond, FlushInterval: -1, Logger: quiet}, got.handler())
	got.waitFor(t, "one")
	eventually(t, func() bool { return stored(t, admin, "g") == 1 }, "the offset is not stored")
	do(t, admin, "SET GLOBAL read_only = 1")
	insert(t, admin, "orders", "two")
	eventually(t, func() bool { return len(got.ids()) >= 2 }, "the row does not come")

	var alone collected
	k := run(t, db, "orders", Options{From: "beginning", Grace: time.Millisecond}, alone.handler())
	alone.waitFor(t, "one", "two")
	require.NoError(t, k.end(t))
	err = run(t, db, "orders", Options{Group: "other", From: "beginning"}, alone.handler()).wait(t)
	require.EqualValues(t, 1290, number(err), "%v", err)
	require.ErrorContains(t, err, "connect to its primary")
	require.ErrorIs(t, run(t, db, "orders", Options{Mode: modeHandshake}, alone.handler()).wait(t), notify.ErrReadOnly)

	do(t, admin, "SET GLOBAL read_only = 0")
	insert(t, admin, "orders", "three")
	eventually(t, func() bool { return stored(t, admin, "g") == 3 }, "it does not go on when the server takes writes again")
	require.NoError(t, c.end(t))
}

// If the server goes away while a consumer runs, the consumer waits for it.
func serverGoesAway(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	var got, alone collected
	c := run(t, db, "orders", Options{Group: "g", From: "beginning", FlushInterval: -1, Logger: quiet}, got.handler())
	k := run(t, db, "orders", Options{From: "beginning", Logger: quiet}, alone.handler())
	insert(t, db, "orders", "one")
	got.waitFor(t, "one")
	alone.waitFor(t, "one")
	eventually(t, func() bool { return stored(t, db, "g") == 1 }, "the offset is not stored")
	own.Kill()
	own.Restart(t)
	insert(t, db, "orders", "two")
	got.waitFor(t, "one", "two")
	alone.waitFor(t, "one", "two")
	require.NoError(t, c.end(t))
	require.NoError(t, k.end(t))
}

// If the server is killed (kill -9) under load and comes back, handlers in a
// transaction have done each row exactly once, the others at least once.
func serverKilledUnderLoad(t *testing.T, own *mysqltest.Server) {
	db := openTopic(t, own)
	names, stop := workers(t, db, db)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var load sync.WaitGroup
	var committed atomic.Int64
	for range 2 {
		load.Go(func() {
			for ctx.Err() == nil {
				if _, err := db.Pool().ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('x'), ('x'), ('x')"); err == nil {
					committed.Add(3)
				}
				<-time.After(time.Millisecond) // while the server is away, each attempt fails at once
			}
		})
	}
	defer load.Wait()
	defer cancel()
	for range mysqltest.Many(1, 2, 2) {
		before := committed.Load()
		eventually(t, func() bool { return committed.Load() > before+150 }, "nothing is written")
		own.Kill()
		own.Restart(t)
	}
	before := committed.Load()
	eventually(t, func() bool { return committed.Load() > before+50 }, "nothing is written")
	cancel()
	load.Wait()
	again := handledTwice(t, db, names)
	stop()
	require.GreaterOrEqual(t, mysqltest.Value[int64](t, db.Pool(), "SELECT COUNT(*) FROM orders"), committed.Load())
	require.False(t, again["one_tx"], "a row was handled twice in a transaction")
	require.False(t, again["page_tx"], "a row was handled twice in a transaction")
}

// cutter makes connections that end at a COMMIT: alternately before it is sent, and
// between its sending and the answer.
type cutter struct {
	every   int64
	commits atomic.Int64
	cuts    [2]atomic.Int64
}

func (c *cutter) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	return &cutConn{conn, c}, err
}

type cutConn struct {
	net.Conn
	cutter *cutter
}

var errCut = errors.New("the test cut the connection")

func (c *cutConn) Write(b []byte) (int, error) {
	if !bytes.HasSuffix(b, []byte("COMMIT")) {
		return c.Conn.Write(b)
	}
	n := c.cutter.commits.Add(1)
	if n%c.cutter.every != 0 {
		return c.Conn.Write(b)
	}
	sent := n / c.cutter.every % 2
	c.cutter.cuts[sent].Add(1)
	defer func() { _ = c.Close() }()
	if sent == 1 {
		return c.Conn.Write(b)
	}
	return 0, errCut
}

// If a connection ends at the commit, it is unknown whether the commit was done. The
// stored offset shows it, so the work is still done once.
func TestCutAtTheCommit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		for range mysqltest.Many(20, 30, 60) {
			insert(t, db, "orders", "x", "x", "x", "x", "x")
		}
		cutter := &cutter{every: 9}
		far := config.Clone()
		far.DialFunc = cutter.dial
		cut, err := notify.OpenConfig(far)
		require.NoError(t, err)
		defer func() { require.NoError(t, cut.Close()) }()
		names, stop := workers(t, cut, db)
		again := handledTwice(t, db, names)
		stop()
		require.Positive(t, cutter.cuts[0].Load(), "no commit was cut off before it was sent")
		require.Positive(t, cutter.cuts[1].Load(), "no commit was cut off before its answer")
		require.False(t, again["one_tx"], "a row was handled twice in a transaction")
		require.False(t, again["page_tx"], "a row was handled twice in a transaction")
	})
}

// When a commit is in doubt, the member's progress is older than what the commit may
// have stored. It must not overwrite the offset, or the work would be done again.
func TestInDoubtKeepsTheOffset(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		setup := openConfig(t, config, "orders")
		cutter := &cutter{every: 3} // the fence, the first message; then the third is sent, and cut
		far := config.Clone()
		far.DialFunc = cutter.dial
		db, err := notify.OpenConfig(far)
		require.NoError(t, err)
		defer func() { require.NoError(t, db.Close()) }()
		o, begun, err := claim(t.Context(), db, "orders", "g", "m", false, func() (position.Progress, error) { return position.Progress{}, nil })
		require.NoError(t, err)
		options, err := Options{Group: "g", FlushInterval: time.Hour, Logger: quiet}.withDefaults()
		require.NoError(t, err)
		d := &delivery{
			handler: EachTx(func(context.Context, *sqlx.Tx, Message) error { return nil }),
			options: options, db: db, offset: o, progress: begun,
		}
		in := make(chan batch, 3)
		in <- batch{messages: []Message{{Topic: "orders", ID: 1}}, inOrder: true, settled: 1}
		in <- batch{settled: 5} // to be stored at some time
		in <- batch{messages: []Message{{Topic: "orders", ID: 6}}, inOrder: true, settled: 6}
		require.ErrorIs(t, d.run(t.Context(), t.Context(), in), mysql.ErrInvalidConn)
		require.EqualValues(t, 1, cutter.cuts[1].Load())
		eventually(t, func() bool { return stored(t, setup, "g") == 6 }, "%d is stored", stored(t, setup, "g"))
	})
}

// A network with interruptions costs only time.
func TestConnectionsCutUnderLoad(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		proxy := s.Proxy(t)
		far, err := notify.OpenConfig(proxy.Config(config))
		require.NoError(t, err)
		defer func() { require.NoError(t, far.Close()) }()
		names, stop := workers(t, far, db)
		rows := 0
		for round := range mysqltest.Many(2, 6, 6) {
			for range 10 {
				insert(t, db, "orders", "x", "x", "x", "x", "x")
			}
			rows += 50
			eventually(t, func() bool {
				return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT id) FROM one_tx") > rows-40
			}, "round %d", round)
			proxy.Down()
			insert(t, db, "orders", "x")
			rows++
			proxy.Up()
		}
		again := handledTwice(t, db, names)
		stop()
		require.False(t, again["one_tx"], "a row was handled twice in a transaction")
		require.False(t, again["page_tx"], "a row was handled twice in a transaction")
	})
}
