package consumer

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// Messages that come one by one are read by their commit waits. The reader's own prepared
// statement reads few of them.
func TestMessagesComeWithTheWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, "orders"))
		var got collected
		var timeouts atomic.Int64 // after these the reader reads by itself
		far, commands := counted(t, config)
		run(t, far, "orders", Options{From: "beginning", Woken: func(w string) {
			if w == wakeTimeout {
				timeouts.Add(1)
			}
		}}, got.handler())
		var payloads []string
		insert := func(db mysqltest.Database) {
			t.Helper()
			payloads = append(payloads, fmt.Sprint("message ", len(payloads)))
			mysqltest.Exec(t, db, `INSERT INTO orders (payload, headers) VALUES (?, '{"k": "ü"}')`, payloads[len(payloads)-1])
		}
		for range 2 {
			insert(db.Pool())
			got.waitFor(t, payloads...)
		}
		mysqltest.Window(t, time.Second) // the listener leads by then
		// The commit wait is a prepared statement, too. Each commit follows it, because on a loaded machine it would otherwise come too late,
		// and then the reader reads the row.
		mysqltest.Eventually(t, "the reader asks for few of five messages", func() bool {
			read, timedOut := commands.Prepared(), timeouts.Load()
			const n = 5
			for range n {
				tx, err := db.Pool().BeginTxx(t.Context(), nil)
				require.NoError(t, err)
				insert(tx)
				mysqltest.Eventually(t, "the commit is waited for", func() bool {
					// Not from INNODB_TRX: frequent reads keep that view stale, also for the consumers of other tests.
					return mysqltest.Value[bool](t, db.Pool(), "SELECT COUNT(*) > 0 FROM information_schema.PROCESSLIST"+
						" WHERE DB = DATABASE() AND INFO LIKE '%LOCK IN SHARE MODE%' AND ID <> CONNECTION_ID()")
				})
				require.NoError(t, tx.Commit())
				got.waitFor(t, payloads...)
			}
			return int64(commands.Prepared()-read)-(timeouts.Load()-timedOut) < n*3/2
		})
		for _, m := range got.all {
			require.Equal(t, map[string]string{"k": "ü"}, m.Headers)
			require.False(t, m.CreatedAt.IsZero())
		}
	})
}

// newAheadRows returns the rows of orders, and the row that the commit wait after an id returns.
func newAheadRows(t *testing.T, db *notify.DB) (r *rows, come func(a *ahead, after uint64) (keep func())) {
	t.Helper()
	session, err := core.NewSession(t.Context(), db, core.SessionOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, session.Close()) })
	described, err := table.Describe(t.Context(), db.Pool(), db.Name(), "orders")
	require.NoError(t, err)
	r, err = newRows(session, described, Options{})
	require.NoError(t, err)
	return r, func(a *ahead, after uint64) (keep func()) {
		t.Helper()
		result, err := db.Pool().Query(a.CommitWait(), after)
		require.NoError(t, err)
		defer func() { require.NoError(t, result.Close()) }()
		for result.Next() {
			_, keep, err = a.Row(after, result)
			require.NoError(t, err)
		}
		require.NoError(t, result.Err())
		return keep
	}
}

// A row that came with its commit is taken once, by a reader directly before it, and only if no row can be
// between the two.
func TestAheadIsTaken(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 5)...)
		rows, come := newAheadRows(t, db)
		for _, c := range []struct {
			name  string
			after uint64       // the row after it comes
			then  func(*ahead) // may be nil
			at    uint64       // of the reader
			ids   []uint64     // nil for no page
		}{
			{name: "right before it", after: 4, at: 4, ids: []uint64{5}},
			{name: "further back", after: 4, at: 3},
			{name: "past it", after: 4, at: 5},
			{name: "out of date", after: 4, then: (*ahead).Outdate, at: 4},
			{name: "a second time", after: 4, then: func(a *ahead) { a.take(4) }, at: 4},
			{name: "a row stands between", after: 3, at: 3},
		} {
			a := newAhead(rows)
			if keep := come(a, c.after); keep != nil {
				require.Nil(t, a.take(c.after), "%s: before it is handed over", c.name)
				keep()
			}
			if c.then != nil {
				c.then(a)
			}
			p := a.take(c.at)
			if c.ids == nil {
				require.Nil(t, p, c.name)
				continue
			}
			require.NotNil(t, p, c.name)
			require.Equal(t, c.ids, idsOf(p.messages), c.name)
			require.False(t, p.full, c.name)
		}
		for name, options := range map[string]Options{
			"a condition, as what it leaves out must be passed over": {Where: "id % 2 = 0"},
			"columns of the table": {Columns: []string{"payload"}},
		} {
			rows, err := newRows(rows.session, rows.table, options)
			require.NoError(t, err)
			require.Nil(t, newAhead(rows), name)
		}
	})
}

// Up to a head whose writers have ended the reader tracks no gap. A row that came before this was known is therefore read again,
// with the rows after it.
func TestAheadOfTheHorizon(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "1")
		rows, come := newAheadRows(t, db)
		require.NoError(t, rows.prepare(t.Context()))
		rows.ahead = newAhead(rows)
		come(rows.ahead, 0)()
		insert(t, db, "orders", "2", "3")
		out := make(chan batch, 1)
		r := &reader{rows: rows, source: unknown{}, wm: newWatermark(0, position.Set{}), out: out, log: testLogger(t), pageRows: 100, limit: 100}
		_, err := r.pollWriters(t.Context(), 3)
		require.NoError(t, err)
		require.Equal(t, uint64(3), r.wm.horizon)
		_, err = r.readPage(t.Context())
		require.NoError(t, err)
		require.Equal(t, []uint64{1, 2, 3}, idsOf((<-out).messages))
	})
}
