package consumer

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/ident"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

// consumed returns the ids that a consumer with StopAtEnd gets.
func consumed(tb testing.TB, db *notify.DB, topic string, options Options) []uint64 {
	tb.Helper()
	options.StopAtEnd = true
	var got collected
	require.NoError(tb, run(tb, db, topic, options, got.handler()).wait(tb))
	return append([]uint64(nil), got.ids()...)
}

func TestPositions(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for _, id := range []int{2, 3, 5, 8, 1000} {
			do(t, db, fmt.Sprintf("INSERT INTO orders (id, payload) VALUES (%d, MOD(%d, 2))", id, id))
		}
		for _, c := range []struct {
			name string
			from string
			want []uint64
		}{
			{"beginning", "beginning", []uint64{2, 3, 5, 8, 1000}},
			{"end", "end", nil},
			{"the zero value is the end", "", nil},
			{"last none", "last 0", nil},
			{"last", "last 1", []uint64{1000}},
			{"last with gaps", "last 3", []uint64{5, 8, 1000}},
			{"last of fewer", "last 100", []uint64{2, 3, 5, 8, 1000}},
			{"id", "5", []uint64{5, 8, 1000}},
			{"id in a gap", "9", []uint64{1000}},
			{"id 0", "0", []uint64{2, 3, 5, 8, 1000}},
			{"id right after the end", "1001", nil},
		} {
			require.Equal(t, c.want, consumed(t, db, "orders", Options{From: c.from}), c.name)
			require.Equal(t, c.want, consumed(t, db, "orders", Options{Group: c.name, From: c.from}), c.name)
			require.Empty(t, consumed(t, db, "orders", Options{Group: c.name, From: "beginning"}), "%s: From is for the first time", c.name)
		}
		require.Equal(t, []uint64{3, 5}, consumed(t, db, "orders", Options{From: "last 2", Where: "payload = '1'"}))
		require.Equal(t, []uint64{3, 5}, consumed(t, db, "orders", Options{From: "last 9", Where: "payload = '1'"}))
		require.Equal(t, []uint64{1000}, consumed(t, db, "orders", Options{Group: "last", From: "last 1", Reset: true}), "Reset begins anew")

		for _, id := range []uint64{1002, math.MaxUint64} {
			var got collected
			err := run(t, db, "orders", Options{From: strconv.FormatUint(id, 10)}, got.handler()).wait(t)
			require.ErrorIs(t, err, ErrBelowOffset)
			require.ErrorContains(t, err, "ends at id 1000")
			require.NotContains(t, err.Error(), "reset", "it would begin there again")
		}
	})
}

// begun reports whether a group of the topic has begun.
func begun(tb testing.TB, db *notify.DB, topic string) bool {
	tb.Helper()
	return mysqltest.Value[bool](tb, db.Pool(), "SELECT COUNT(*) FROM mqnotify_offset WHERE topic = ?", topic)
}

func TestPositionsOfAnEmptyTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		positions := map[string]string{
			"beginning": "beginning", "end": "end", "last": "last 3", "id": "1", "time": time.Now().Format(time.RFC3339Nano), "long ago": time.Unix(0, 0).Format(time.RFC3339Nano),
		}
		db := openConfig(t, s.Database(t), slices.Collect(maps.Keys(positions))...)
		for name, from := range positions {
			var got collected
			c := run(t, db, name, Options{Group: "g", From: from}, got.handler())
			eventually(t, func() bool { return begun(t, db, name) }, "%s", name)
			insert(t, db, name, "first")
			got.waitFor(t, "first")
			require.NoError(t, c.end(t))
		}
	})
}

// A row of a transaction that is open when a reader begins at the end has a lower
// id than the newest row, and is delivered when it commits. The same holds for the last rows and
// for a time.
func TestEndWithATransactionInFlight(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		positions := map[string]struct {
			from string
			want []string // before the commit
		}{
			"end":         {"end", nil},
			"last":        {"last 1", []string{"three"}},
			"a time":      {time.Date(2020, 1, 1, 0, 0, 3, 0, time.UTC).Format(time.RFC3339Nano), []string{"three"}},
			"later times": {time.Date(2020, 1, 1, 0, 0, 4, 0, time.UTC).Format(time.RFC3339Nano), nil},
		}
		db := openConfig(t, s.Database(t), slices.Collect(maps.Keys(positions))...)
		for name, c := range positions {
			table := ident.Quote(name)
			do(t, db, "INSERT INTO "+table+" (created_at, payload) VALUES ('2020-01-01 00:00:01', 'one')")
			conn := newConn(t, db)
			onConn(t, conn, "START TRANSACTION", "INSERT INTO "+table+" (payload) VALUES ('late')")
			do(t, db, "INSERT INTO "+table+" (created_at, payload) VALUES ('2020-01-01 00:00:03', 'three')")
			var got collected
			k := run(t, db, name, Options{Group: "g", From: c.from}, got.handler())
			eventually(t, func() bool { return begun(t, db, name) }, "%s", name)
			got.waitFor(t, c.want...)
			onConn(t, conn, "COMMIT")
			got.waitFor(t, append(c.want, "late")...)
			insert(t, db, name, "new")
			got.waitFor(t, append(c.want, "late", "new")...)
			require.NoError(t, k.end(t))
		}
	})
}

// The end is found among the newest rows, however many rows there are.
func TestEndOfALongTable(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE digits (d INT NOT NULL)", "INSERT INTO digits VALUES (0),(1),(2),(3),(4),(5),(6),(7),(8),(9)",
			`INSERT INTO orders (id, payload) SELECT 2 * (1 + a.d + 10*b.d + 100*c.d + 1000*d.d + 10000*e.d), 'x'
			FROM digits a, digits b, digits c, digits d, digits e WHERE e.d < 3`)
		require.Empty(t, consumed(t, db, "orders", Options{From: "end"}))
		last := consumed(t, db, "orders", Options{From: "last 12000"})
		require.Len(t, last, 12_000)
		require.Equal(t, uint64(60_000), last[len(last)-1])
		require.Equal(t, uint64(36_002), last[0])
	})
}

func TestSince(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		begin := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
		do(t, db, "CREATE TABLE shop (id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, at DATETIME NULL, other TIMESTAMP(6) NULL, day DATE)")
		var times []string
		for i := range 1000 {
			at := begin.Add(time.Duration(i) * time.Minute)
			if i%3 == 0 { // a neighbour's time is later by minutes
				at = at.Add(-5 * time.Minute)
			}
			times = append(times, fmt.Sprintf("(%d, '%s', '%s')", 7*(i+1), at.Format(time.DateTime), at.Format(time.DateTime)))
		}
		_, err := db.Pool().ExecContext(t.Context(), "SET time_zone = '+00:00'")
		require.NoError(t, err)
		conn := newConn(t, db)
		onConn(t, conn, "SET time_zone = '+00:00'", "INSERT INTO shop (id, at, other) VALUES "+strings.Join(times, ", "), "INSERT INTO shop (id, at) VALUES (7777, NULL)")
		first := func(at time.Time, column string) uint64 {
			ids := consumed(t, db, "shop", Options{From: at.Format(time.RFC3339Nano), TimeColumn: column})
			if len(ids) == 0 {
				return 0
			}
			return ids[0]
		}
		for _, column := range []string{"at", "other"} {
			for i := range 8 {
				at := begin.Add(time.Duration(i*131) * time.Minute)
				want := mysqltest.Value[uint64](t, db.Pool(), "SELECT COALESCE(MIN(id), 0) FROM shop WHERE at >= ?", at.Format(time.DateTime))
				require.Equal(t, want, first(at, column), "%s %v", column, at)
				// The same moment in another zone, and an earlier moment.
				require.Equal(t, want, first(at.In(time.FixedZone("", 3*3600)), column))
				require.Equal(t, want, first(at.Add(-time.Microsecond), column))
			}
			require.Equal(t, uint64(7), first(begin.Add(-time.Hour), column), "before the first")
			require.Equal(t, uint64(7), first(time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC), column), "long before")
			require.Zero(t, first(begin.Add(1000*time.Hour), column), "after the last")
			require.Zero(t, first(time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC), column), "long after")
		}
		for column, want := range map[string]error{"day": table.ErrNoColumn, "none": table.ErrNoColumn, "": table.ErrNoColumn} {
			var got collected
			err := run(t, db, "shop", Options{From: begin.Format(time.RFC3339Nano), TimeColumn: column}, got.handler()).wait(t)
			require.ErrorIs(t, err, want, column)
		}
	})
}

// A group with an offset ignores From, even one that can't be
// found, and Reset without a group is refused.
func TestResetNeedsAGroup(t *testing.T) {
	_, err := New(nil, "orders", Options{Reset: true})
	require.ErrorIs(t, err, notify.ErrOptions)
}

// A consumer without a group also continues where it was after its connections are
// lost: it neither begins again nor omits rows that were committed in the meantime.
func TestReconnectWithoutAGroup(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		insert(t, db, "orders", "one")
		proxy := s.Proxy(t)
		far, err := notify.OpenConfig(proxy.Config(config))
		require.NoError(t, err)
		defer func() { require.NoError(t, far.Close()) }()
		var all, news collected
		first := run(t, far, "orders", Options{From: "beginning", Logger: quiet}, all.handler())
		all.waitFor(t, "one")
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, db, "orders", "three")
		all.waitFor(t, "one", "three")
		polls := newPolls()
		second := run(t, far, "orders", Options{From: "end", Logger: quiet, wrap: polls.wrap}, news.handler())
		polls.wait(t) // at its gap
		proxy.Down()
		insert(t, db, "orders", "four")
		onConn(t, conn, "COMMIT")
		proxy.Up()
		eventually(t, func() bool { return len(all.payloads()) >= 4 }, "got %v", all.payloads())
		require.ElementsMatch(t, []string{"one", "three", "four", "late"}, all.payloads())
		insert(t, db, "orders", "five")
		eventually(t, func() bool { return len(all.payloads()) >= 5 && len(news.payloads()) >= 3 }, "got %v and %v", all.payloads(), news.payloads())
		require.ElementsMatch(t, []string{"one", "three", "four", "late", "five"}, all.payloads())
		require.ElementsMatch(t, []string{"four", "late", "five"}, news.payloads())
		require.NoError(t, first.end(t))
		require.NoError(t, second.end(t))
	})
}
