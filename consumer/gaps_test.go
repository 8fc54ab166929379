package consumer

import (
	"context"
	"database/sql"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// ways returns the ways to find the open writers that the server supports.
func ways(s *mysqltest.Server) []string {
	if s.IsMariaDB() {
		return []string{writersInnoDBTrx, writersUnknown}
	}
	return []string{writersMetadataLocks, writersInnoDBTrx, writersUnknown}
}

// gapTests run for every way to find the open writers.
var gapTests = []struct {
	name string
	test func(t *testing.T, s *mysqltest.Server, writers string)
}{
	{"LateCommit", lateCommit},
	{"OpenTransactionDelaysNoOther", openTransactionDelaysNoOther},
	{"WritersThatBeginBehindTheQuestion", writersThatBeginBehindTheQuestion},
	{"ManyGaps", manyGaps},
	{"RestartWithOpenGaps", restartWithOpenGaps},
	{"StrictOrderHoldsBack", strictOrderHoldsBack},
	{"StrictOrderUnderLoad", strictOrderUnderLoad},
	{"StaleView", staleView},
	{"WhereLeavesRowsOut", whereLeavesRowsOut},
	{"AwkwardNameWithGaps", awkwardNameWithGaps},
}

// TestGaps runs gapTests in parallel, but those that read INNODB_TRX one after the other: the server refreshes that view
// only if it was not read for 100 ms, so that many readers keep it stale. In the short form some tests with one way must do.
func TestGaps(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, writers := range mysqltest.Many([]string{writersUnknown}, ways(s), ways(s)) {
			t.Run(writers, func(t *testing.T) {
				t.Parallel()
				for _, c := range mysqltest.Some(t, gapTests) {
					t.Run(c.name, func(t *testing.T) {
						if writers != writersInnoDBTrx {
							t.Parallel()
						}
						c.test(t, s, writers)
					})
				}
			})
		}
	})
}

// A transaction that stays open delays only its own row, whether the others
// began before it or after it, and however late they commit.
func openTransactionDelaysNoOther(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	var got collected
	c := run(t, db, "orders", Options{From: "beginning", Writers: writers}, got.handler())
	before, long := newConn(t, db), newConn(t, db)
	onConn(t, before, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('before')")
	onConn(t, long, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('long')")
	insert(t, db, "orders", "x")
	got.waitFor(t, "x")
	want := []string{"x"}
	for range 10 { // polls, each with other writers
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('after')")
		insert(t, db, "orders", "x")
		want = append(want, "x")
		got.waitFor(t, want...)
		onConn(t, conn, "COMMIT")
		leave(conn)
		want = append(want, "after")
		got.waitFor(t, want...)
	}
	onConn(t, before, "COMMIT")
	want = append(want, "before")
	got.waitFor(t, want...)
	onConn(t, long, "COMMIT")
	got.waitFor(t, append(want, "long")...)
	require.NoError(t, c.end(t))
}

// The reader reads the head before the writers, so that a writer that begins between the two has larger ids. Here
// a row is inserted, and a larger one committed, each time right after the reader
// has asked for the writers.
func writersThatBeginBehindTheQuestion(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	var late []*sql.Conn
	for range 6 {
		late = append(late, newConn(t, db))
	}
	polls := newPolls()
	begun := make(chan struct{})
	polls.then = func(n int64) {
		if n <= int64(len(late)) {
			onConn(t, late[n-1], "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
			insert(t, db, "orders", "x")
		}
		if n == int64(len(late)) {
			close(begun)
		}
	}
	insert(t, db, "orders", "x")
	var got collected
	c := run(t, db, "orders", Options{From: "beginning", Writers: writers, wrap: polls.wrap}, got.handler())
	select {
	case <-begun:
	case <-time.After(patience):
		t.Fatal("the reader does not poll")
	}
	eventually(t, func() bool { return len(got.ids()) == 7 }, "got %v", got.payloads())
	polls.wait(t)
	for _, conn := range late {
		onConn(t, conn, "COMMIT")
	}
	eventually(t, func() bool { return len(got.ids()) == 13 }, "rows were lost: %v", got.payloads())
	require.NoError(t, c.end(t))
}

// The reader handles many gaps, of rows that were committed, rolled back, or never inserted.
func manyGaps(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	polls := newPolls()
	var got collected
	c := run(t, db, "orders", Options{Group: "g", From: "beginning", Writers: writers, Grace: time.Second, wrap: polls.wrap}, got.handler())
	late := newConn(t, db)
	onConn(t, late, "START TRANSACTION")
	var want []uint64
	for id := 1; id <= 3*maxRanges*5; id += 3 { // a row, a row that is late, and none
		want = append(want, uint64(id), uint64(id+1))
	}
	values := func(rest int) string {
		text := ""
		for _, id := range want {
			if id%3 == uint64(rest) {
				text += fmt.Sprintf(", (%d, 'x')", id)
			}
		}
		return "INSERT INTO orders (id, payload) VALUES " + text[2:]
	}
	onConn(t, late, values(2))
	do(t, db, values(1))
	eventually(t, func() bool { return len(got.ids()) == len(want)/2 }, "the rows that are there do not come")
	polls.wait(t)
	onConn(t, late, "COMMIT")
	eventually(t, func() bool { return len(got.ids()) >= len(want) }, "the late rows do not come: %d", len(got.ids()))
	ids := got.ids()
	slices.Sort(ids)
	require.Equal(t, want, ids)
	eventually(t, func() bool { return stored(t, db, "g") == want[len(want)-1] }, "the gaps do not close")
	require.NoError(t, c.end(t))
}

// A consumer that restarts while gaps are open, at any time, gets
// the rows that fill them, and no row twice.
func restartWithOpenGaps(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	options := Options{Group: "g", From: "beginning", Writers: writers, StopAtEnd: true}
	next := func() []string {
		var got collected
		require.NoError(t, run(t, db, "orders", options, got.handler()).wait(t))
		return got.payloads()
	}
	early, late := newConn(t, db), newConn(t, db)
	onConn(t, early, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('2')")
	insert(t, db, "orders", "one")
	onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('4'), ('5')")
	insert(t, db, "orders", "two")
	require.Equal(t, []string{"one", "two"}, next())
	require.Empty(t, next())
	onConn(t, early, "COMMIT")
	insert(t, db, "orders", "three")
	require.Equal(t, []string{"2", "three"}, next())
	insert(t, db, "orders", "four")
	require.Equal(t, []string{"four"}, next())
	onConn(t, late, "COMMIT")
	require.Equal(t, []string{"4", "5"}, next())
	require.Empty(t, next())
}

// In strict order rows wait until no row with a lower id can appear: they are held
// back behind an open transaction, also when the consumer restarts in the meantime.
func strictOrderHoldsBack(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	polls := newPolls()
	options := Options{Group: "g", From: "beginning", Writers: writers, Strict: true, Grace: time.Hour, wrap: polls.wrap}
	insert(t, db, "orders", "one")
	conn := newConn(t, db)
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('two')")
	insert(t, db, "orders", "three", "four")
	onConn(t, newConn(t, db), "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
	for range 2 {
		var got collected
		c := run(t, db, "orders", options, got.handler())
		polls.wait(t)
		require.NotContains(t, got.payloads(), "three")
		require.NoError(t, c.end(t))
	}
	var got collected
	c := run(t, db, "orders", options, got.handler())
	polls.wait(t)
	require.Empty(t, got.payloads())
	onConn(t, conn, "COMMIT")
	got.waitFor(t, "two", "three", "four")
	require.NoError(t, c.end(t))
	options.Grace = 2 * time.Second // from here no row of an open transaction counts
	c = run(t, db, "orders", options, got.handler())
	insert(t, db, "orders", "five")
	got.waitFor(t, "two", "three", "four", "five")
	require.NoError(t, c.end(t))

	// Reading to the end waits for the transactions that hold the end back.
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('six')")
	insert(t, db, "orders", "seven")
	options.StopAtEnd = true
	var rest collected
	second := polls.n.Load() + 2 // the first poll may have begun before
	c = run(t, db, "orders", options, rest.handler())
	eventually(t, func() bool { return polls.n.Load() >= second }, "it does not poll")
	onConn(t, conn, "ROLLBACK")
	require.NoError(t, c.wait(t))
	require.Equal(t, []string{"seven"}, rest.payloads())
}

// Strict order is exact under writers that commit out of order and roll back.
func strictOrderUnderLoad(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	var got collected
	c := run(t, db, "orders", Options{From: "beginning", Writers: writers, Strict: true, Grace: 15 * time.Second}, got.handler())
	var load sync.WaitGroup
	for n := range 4 {
		conn := newConn(t, db)
		load.Go(func() {
			for i := range mysqltest.Many(15, 40, 40) {
				end := "COMMIT"
				if i%5 == n {
					end = "ROLLBACK"
				}
				for _, statement := range []string{"START TRANSACTION", "INSERT INTO orders (payload) VALUES ('x')",
					"INSERT INTO orders (payload) VALUES (CONCAT('slow', SLEEP(0.003))), ('x')", end} {
					if _, err := conn.ExecContext(context.WithoutCancel(t.Context()), statement); err != nil {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	load.Wait()
	want := mysqltest.Values[uint64](t, db.Pool(), "SELECT id FROM orders ORDER BY id")
	eventually(t, func() bool { return len(got.ids()) >= len(want) }, "got %d of %d", len(got.ids()), len(want))
	require.Equal(t, want, got.ids())
	require.NoError(t, c.end(t))
}

// A view of the transactions that may be older than the head settles nothing,
// however long it stays stale; rows that commit are still delivered.
func staleView(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	polls := newPolls()
	polls.stale.Store(true)
	var got collected
	c := run(t, db, "orders", Options{Group: "g", From: "beginning", Writers: writers, Grace: time.Millisecond, FlushInterval: -1, wrap: polls.wrap},
		got.handler())
	conn := newConn(t, db)
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
	insert(t, db, "orders", "two")
	got.waitFor(t, "two")
	polls.wait(t)
	polls.wait(t)
	require.Zero(t, stored(t, db, "g"))
	onConn(t, conn, "COMMIT")
	got.waitFor(t, "two", "late")
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
	insert(t, db, "orders", "four")
	got.waitFor(t, "two", "late", "four")
	eventually(t, func() bool { return stored(t, db, "g") > 0 }, "the offset is not stored")
	polls.wait(t)
	require.Equal(t, uint64(2), stored(t, db, "g"))
	polls.stale.Store(false)
	eventually(t, func() bool { return stored(t, db, "g") == 4 }, "the gap does not close")
	require.NoError(t, c.end(t))
}

// If the writers can't be seen, a gap stays open for the grace period, and longer while
// a probe finds its row locked.
func TestGraceIsProlongedByALockedRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		polls := newPolls()
		var got collected
		const grace = 100 * time.Millisecond
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", Writers: writersUnknown, Grace: grace, FlushInterval: -1, wrap: polls.wrap}, got.handler())
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, db, "orders", "two")
		got.waitFor(t, "two")
		start := time.Now()
		for time.Since(start) < 5*grace { // each poll probes
			polls.wait(t)
			require.Zero(t, stored(t, db, "g"))
		}
		onConn(t, conn, "COMMIT")
		got.waitFor(t, "two", "late")
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('never')", "ROLLBACK")
		insert(t, db, "orders", "four")
		got.waitFor(t, "two", "late", "four")
		eventually(t, func() bool { return stored(t, db, "g") == 4 }, "a gap without a row keeps its grace for ever")
		require.NoError(t, c.end(t))
	})
}

// Rows that the condition excludes are not gaps to be read repeatedly, and the
// offset passes them.
func whereLeavesRowsOut(t *testing.T, s *mysqltest.Server, writers string) {
	t.Helper()
	db := openTopic(t, s)
	insert(t, db, "orders", numbers(1, 300)...)
	options := Options{Group: "g", From: "beginning", Writers: writers, Grace: time.Second, Where: "payload % 100 = 0 -- hundreds"}
	var got collected
	c := run(t, db, "orders", options, got.handler())
	got.waitFor(t, "100", "200", "300")
	conn := newConn(t, db)
	onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('400'), ('401')")
	insert(t, db, "orders", "1", "500", "2")
	got.waitFor(t, "100", "200", "300", "500")
	onConn(t, conn, "COMMIT")
	got.waitFor(t, "100", "200", "300", "500", "400")
	eventually(t, func() bool { return stored(t, db, "g") == 305 }, "the offset does not pass the rows that are left out")
	require.NoError(t, c.end(t))
}
