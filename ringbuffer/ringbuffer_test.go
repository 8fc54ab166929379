package ringbuffer

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/internal/schematest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

func appendText(tb testing.TB, r *Buffer, payloads ...string) uint64 {
	tb.Helper()
	all := make([][]byte, len(payloads))
	for i, p := range payloads {
		all[i] = []byte(p)
	}
	last, err := r.Append(tb.Context(), all...)
	require.NoError(tb, err)
	return last
}

// reader reads a ring from one entry to the next.
type reader struct {
	*Buffer
	after  uint64
	missed uint64 // by the last next
}

func next(tb testing.TB, r *reader, limit int) (payloads []string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	entries, err := r.Read(ctx, r.after, limit)
	require.NoError(tb, err)
	r.missed = entries[0].Missed
	for i, e := range entries {
		require.True(tb, i == 0 || e.Missed == 0 && e.Number == r.after+1)
		r.after = e.Number
		payloads = append(payloads, string(e.Payload))
	}
	return payloads
}

// A ring never has more rows than its size, and a reader that was overtaken learns how many entries it
// missed.
func TestRing(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s, 4)
		ring := open(t, db)
		reader := &reader{Buffer: ring}
		assert.Equal(t, uint64(3), appendText(t, ring, "1", "2", "3"))
		assert.Equal(t, []string{"1", "2"}, next(t, reader, 2))
		assert.Equal(t, []string{"3"}, next(t, reader, 2))
		assert.Equal(t, uint64(7), appendText(t, ring, "4", "5", "6", "7"))
		assert.Equal(t, []string{"4", "5", "6", "7"}, next(t, reader, 10))
		appendText(t, ring, "8", "9", "10", "11")
		appendText(t, ring, "12", "13", "")
		assert.Equal(t, 4, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_ring_slot"))
		assert.Equal(t, []string{"11", "12", "13", ""}, next(t, reader, 10))
		assert.Equal(t, uint64(3), reader.missed) // 8, 9, 10
		head, size, err := ring.Head(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 4, size)
		assert.Equal(t, uint64(14), head)
		read := func(after uint64, limit int) []Entry {
			entries, err := ring.Read(t.Context(), after, limit)
			require.NoError(t, err)
			return entries
		}
		assert.Len(t, read(12, 10), 2)
		assert.Equal(t, uint64(11), read(0, 1)[0].Number)
		assert.Zero(t, read(0, 1)[0].Missed, "from the oldest: nothing was missed")
		assert.Equal(t, uint64(8), read(2, 1)[0].Missed, "3 to 10")
		_, err = ring.Append(t.Context(), make([][]byte, 5)...)
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, "5 entries at once: append 4 at most")
		entries := read(12, 1)
		assert.Equal(t, uint64(13), entries[0].Number)
		assert.True(t, mysqltest.Value[bool](t, db.Pool(), "SELECT ABS(UNIX_TIMESTAMP() - ?) < 60", entries[0].WrittenAt.Unix()))
	})
}

// A reader that waits at an empty ring also learns how many entries it missed.
func TestOvertakenAtOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s, 4)
		ring := open(t, db)
		entries, _, err := ring.read(t.Context(), 0, 1, false)
		require.NoError(t, err)
		require.Empty(t, entries)
		appendText(t, ring, "1", "2", "3")
		appendText(t, ring, "4", "5", "6")
		entries, _, err = ring.read(t.Context(), 0, 10, true) // as Read does after it has waited
		require.NoError(t, err)
		require.Len(t, entries, 4)
		assert.Equal(t, uint64(2), entries[0].Missed)
	})
}

// A ring that was deleted and created again does not look like one without new entries.
func TestShorter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s, 4)
		ring := open(t, db)
		appendText(t, ring, "1", "2", "3")
		assert.Equal(t, []string{"1", "2", "3"}, next(t, &reader{Buffer: ring}, 10))
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_ring_slot")
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_ring")
		require.NoError(t, Create(t.Context(), db, "log", 4))
		appendText(t, ring, "new")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := ring.Read(ctx, 3, 10)
		require.ErrorIs(t, err, ErrShorter)
		require.ErrorContains(t, err, "its newest is 1, and the reader has been at 3")
	})
}

// Entries that fit into a packet one by one can be appended together.
func TestAppendLargeEntries(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s, 100)
		entries := make([][]byte, 20)
		for i := range entries {
			entries[i] = bytes.Repeat([]byte("\"'"), 500_000) // escaped, all together are larger than a packet of MariaDB
		}
		last, err := open(t, db).Append(t.Context(), entries...)
		require.NoError(t, err)
		require.EqualValues(t, len(entries), last)
	})
}

// Where a packet is small, entries are stored that fit into one, and larger ones are refused with their size.
func TestAppendWithSmallPackets(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		db, _ := database(t, shared.Start(t, "--max-allowed-packet=1M"), 100)
		b := open(t, db)
		var entries [][]byte
		for range 20 {
			entries = append(entries, bytes.Repeat([]byte("'"), 100<<10))
		}
		large := bytes.Repeat([]byte("'"), 700<<10) // escaped it does not fit
		last, err := b.Append(t.Context(), append(entries, large)...)
		require.NoError(t, err)
		require.EqualValues(t, len(entries)+1, last)
		require.Equal(t, large, mysqltest.Value[[]byte](t, db.Pool(), "SELECT payload FROM mqnotify_ring_slot WHERE entry = ?", last))
		_, err = b.Append(t.Context(), []byte("x"), make([]byte, 1<<20))
		var size *notify.TooLargeError
		require.ErrorAs(t, err, &size)
		require.Equal(t, 1, size.Index)
		require.Equal(t, 1<<20, size.Limit)
		head, _, err := b.Head(t.Context())
		require.NoError(t, err)
		require.Equal(t, last, head)
	})
}

// Waiting readers are woken, and each gets the entries of the writers in the
// order of the numbers, except those that it learns it has missed.
func TestRingAtOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		const writers, size = 4, 50
		each := mysqltest.Many(30, 100, 100)
		db, config := database(t, s, size)
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		var all sync.WaitGroup
		for i := range 3 {
			reader := open(t, openConfig(t, config))
			all.Go(func() {
				last, missed, got := uint64(0), uint64(0), 0
				perWriter := map[string]int{}
				for last < uint64(writers*each) {
					entries, err := reader.Read(ctx, last, 7)
					if !assert.NoError(t, err) {
						return
					}
					missed += entries[0].Missed
					last += entries[0].Missed
					for _, e := range entries {
						if last == 0 { // lapped before it had read at all
							missed = e.Number - 1
							last = missed
						}
						last++
						assert.Equal(t, last, e.Number)
						var writer string
						var n int
						_, err := fmt.Sscan(string(e.Payload), &writer, &n)
						assert.NoError(t, err)
						assert.Greater(t, n, perWriter[writer], "in a writer's order")
						perWriter[writer] = n
						got++
					}
					if i == 1 {
						<-time.After(3 * time.Millisecond) // a slow one
					}
				}
				assert.Equal(t, uint64(writers*each), uint64(got)+missed)
			})
		}
		for w := range writers {
			ring := open(t, openConfig(t, config))
			all.Go(func() {
				for n := range each {
					appendText(t, ring, fmt.Sprintf("w%d %d", w, n+1))
				}
			})
		}
		all.Wait()
		assert.Equal(t, size, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_ring_slot"))
	})
}

// The wake trigger wakes a waiting reader at every entry. Reads without a hint are readBound
// apart, so four entries, one after the other, would take three times that.
func TestRingWakes(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s, 4)
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Events: []string{"update"}, Logger: mysqltest.Logger(t, slog.LevelInfo)}, schema.RingTable))
		ring, read := open(t, db), open(t, openConfig(t, config))
		reader := &reader{Buffer: read}
		auto, err := read.waiter()
		require.NoError(t, err)
		_, err = auto.Head(t.Context()) // returns when the mode is known
		require.NoError(t, err)
		mysqltest.Eventually(t, "it polls nothing", func() bool { mode, _ := auto.Mode(); return mode == "trigger" })
		begun := time.Now()
		for n := range 4 {
			var read sync.WaitGroup
			read.Go(func() { assert.Equal(t, []string{fmt.Sprint(n)}, next(t, reader, 9)) })
			<-time.After(100 * time.Millisecond) // it waits by then
			appendText(t, ring, fmt.Sprint(n))
			read.Wait()
		}
		assert.Less(t, time.Since(begun), 5*readBound/2, "not by polls, which are readBound apart")
	})
}

func TestRefusals(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s, 4)
		require.NoError(t, Create(t.Context(), db, "log", 4))
		for name, size := range map[string]int{"log": 5, "": 1, "zero": 0, "less": -1, "more": maxSize + 1} {
			require.ErrorIs(t, Create(t.Context(), db, name, size), notify.ErrOptions, name)
		}
		_, err := Open(db, "")
		require.ErrorIs(t, err, notify.ErrOptions)
		none, err := Open(db, "none")
		require.NoError(t, err)
		_, err = none.Append(t.Context(), nil)
		require.ErrorIs(t, err, ErrNotFound)
		_, err = none.Read(t.Context(), 0, 1)
		require.ErrorIs(t, err, ErrNotFound)
		_, _, err = none.Head(t.Context())
		require.ErrorIs(t, err, ErrNotFound)
		_, err = none.Read(t.Context(), 0, 0)
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, "a limit of 0 entries: 1 or more")
		require.ErrorContains(t, Create(t.Context(), db, "less", -1), `"less" of -1 entries: from 1 to`)
		for range 2 {
			require.NoError(t, none.Close())
		}
		_, err = none.Append(t.Context(), nil)
		require.ErrorIs(t, err, notify.ErrClosed)
		ring := open(t, db)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = ring.Read(ctx, 0, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}

// Without a trigger Append wakes readers by mqnotify_wake, before Close returns.
func TestCallOfWake(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t) // no other test moves this server's counter
		db, _ := database(t, s, 10)
		schematest.Init(t, db.Pool(), []string{schema.TaskTable})
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: mysqltest.Logger(t, slog.LevelInfo)}, schema.TaskTable)) // with it the routine
		calls := func() (n int) {
			var name string
			require.NoError(t, db.Pool().QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Com_call_procedure'").Scan(&name, &n))
			return n
		}
		before := calls()
		ring := open(t, db)
		appendText(t, ring, "x")
		require.NoError(t, ring.Close())
		require.Greater(t, calls(), before)
	})
}

// A hole in what the server shows does not make a reader skip entries: it reads up to the hole, and goes on when the entries show.
func TestHole(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := database(t, s, 4)
		ring := open(t, db)
		reader := &reader{Buffer: ring}
		appendText(t, ring, "1", "2", "3")
		appendText(t, ring, "4", "5", "6")
		move := func(from, to int) {
			mysqltest.Exec(t, db.Pool(), "UPDATE "+schema.RingSlotTable+" SET entry = ? WHERE entry = ?", to, from)
		}
		move(5, 0)
		assert.Equal(t, []string{"3", "4"}, next(t, reader, 10))
		read := mysqltest.Result(func() []string { return next(t, reader, 10) })
		mysqltest.Window(t, 100*time.Millisecond)
		move(0, 5)
		assert.Equal(t, []string{"5", "6"}, mysqltest.Receive(t, read))
		assert.Zero(t, reader.missed)
	})
}
