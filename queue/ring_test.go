package queue

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

func openRing(tb testing.TB, db *notify.DB) *Ring {
	tb.Helper()
	r, err := OpenRing(db, "log")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, r.Close()) })
	return r
}

func ringOf(tb testing.TB, s *mysqltest.Server, size int) (*notify.DB, *mysql.Config) {
	tb.Helper()
	db, config := database(tb, s)
	require.NoError(tb, CreateRing(tb.Context(), db, "log", size))
	return db, config
}

func appendText(tb testing.TB, r *Ring, payloads ...string) uint64 {
	tb.Helper()
	all := make([][]byte, len(payloads))
	for i, p := range payloads {
		all[i] = []byte(p)
	}
	last, err := r.Append(tb.Context(), all...)
	require.NoError(tb, err)
	return last
}

func next(tb testing.TB, r *Reader, limit int) (payloads []string) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	entries, err := r.Next(ctx, limit)
	require.NoError(tb, err)
	for _, e := range entries {
		payloads = append(payloads, string(e.Payload))
	}
	return payloads
}

// A ring never has more rows than its size, and a reader that was overtaken learns by
// how much.
func TestRing(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := ringOf(t, s, 4)
		ring := openRing(t, db)
		reader := ring.Reader(0)
		assert.Equal(t, uint64(3), appendText(t, ring, "1", "2", "3"))
		assert.Equal(t, []string{"1", "2"}, next(t, reader, 2))
		assert.Equal(t, []string{"3"}, next(t, reader, 2))
		assert.Equal(t, uint64(7), appendText(t, ring, "4", "5", "6", "7"))
		assert.Equal(t, []string{"4", "5", "6", "7"}, next(t, reader, 10))
		appendText(t, ring, "8", "9", "10", "11")
		appendText(t, ring, "12", "13", "")
		assert.Equal(t, 4, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_ring_slot"))
		_, err := reader.Next(t.Context(), 10)
		var lapped *LappedError
		require.ErrorAs(t, err, &lapped)
		assert.Equal(t, LappedError{"log", 3}, *lapped) // 8, 9, 10
		assert.Equal(t, []string{"11", "12", "13", ""}, next(t, reader, 10))
		size, err := ring.Size(t.Context())
		require.NoError(t, err)
		assert.Equal(t, 4, size)
		head, err := ring.Head(t.Context())
		require.NoError(t, err)
		assert.Equal(t, uint64(14), head)
		assert.Equal(t, []string{"13", ""}, next(t, ring.Reader(12), 10))
		assert.Equal(t, []string{"11"}, next(t, ring.Reader(0), 1), "from the oldest: nothing was missed")
		_, err = ring.Reader(2).Next(t.Context(), 1)
		require.ErrorAs(t, err, &lapped)
		assert.Equal(t, LappedError{"log", 8}, *lapped, "3 to 10")
		_, err = ring.Append(t.Context(), make([][]byte, 5)...)
		require.ErrorIs(t, err, notify.ErrOptions)
		entries, err := ring.Reader(12).Next(t.Context(), 1)
		require.NoError(t, err)
		assert.Equal(t, uint64(13), entries[0].Number)
		assert.True(t, mysqltest.Value[bool](t, db.Pool(), "SELECT ABS(UNIX_TIMESTAMP() - ?) < 60", entries[0].WrittenAt.Unix()))
	})
}

// A reader that began on an empty ring is told what it missed too.
func TestRingLappedAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := ringOf(t, s, 4)
		ring := openRing(t, db)
		reader := ring.Reader(0)
		entries, err := reader.read(t.Context(), 1)
		require.NoError(t, err)
		require.Empty(t, entries)
		appendText(t, ring, "1", "2", "3")
		appendText(t, ring, "4", "5", "6")
		_, err = reader.Next(t.Context(), 10)
		var lapped *LappedError
		require.ErrorAs(t, err, &lapped)
		assert.Equal(t, uint64(2), lapped.Missed)
		assert.Equal(t, []string{"3", "4", "5", "6"}, next(t, reader, 10))
	})
}

// A ring that was deleted and made again does not look like one in which nothing happens.
func TestRingShorter(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := ringOf(t, s, 4)
		ring := openRing(t, db)
		reader := ring.Reader(0)
		appendText(t, ring, "1", "2", "3")
		assert.Equal(t, []string{"1", "2", "3"}, next(t, reader, 10))
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_ring_slot")
		mysqltest.Exec(t, db.Pool(), "DELETE FROM mqnotify_ring")
		require.NoError(t, CreateRing(t.Context(), db, "log", 4))
		appendText(t, ring, "new")
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := reader.Next(ctx, 10)
		require.ErrorIs(t, err, ErrRingShorter)
		require.ErrorContains(t, err, "its newest is 1, and the reader has been at 3")
	})
}

// Readers that wait are woken, and each gets what the writers have appended, in the
// order of its numbers, but for what it is told that it missed.
func TestRingAtOnce(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		const writers, size = 4, 50
		each := mysqltest.Many(30, 100, 100)
		db, config := ringOf(t, s, size)
		ctx, cancel := context.WithTimeout(t.Context(), 4*patience)
		defer cancel()
		var all sync.WaitGroup
		for i := range 3 {
			reader := openRing(t, openConfig(t, config)).Reader(0)
			all.Go(func() {
				last, missed, got := uint64(0), uint64(0), 0
				perWriter := map[string]int{}
				for last < uint64(writers*each) {
					entries, err := reader.Next(ctx, 7)
					var lapped *LappedError
					if err != nil {
						if !assert.ErrorAs(t, err, &lapped) {
							return
						}
						missed += lapped.Missed
						last += lapped.Missed
						continue
					}
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
			ring := openRing(t, openConfig(t, config))
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

// Each entry wakes a reader that waits for it by the wake trigger. The reads that it makes by itself are ringBound
// apart: four entries, one after the other, would take three of these.
func TestRingWakes(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := ringOf(t, s, 4)
		install(t, db)
		ring, read := openRing(t, db), openRing(t, openConfig(t, config))
		reader := read.Reader(0)
		auto, err := read.waiter()
		require.NoError(t, err)
		_, err = auto.Head(t.Context()) // returns when the mode is known
		require.NoError(t, err)
		mode, why := auto.Mode()
		require.Equal(t, "trigger", mode, why) // it polls nothing
		begun := time.Now()
		for n := range 4 {
			var read sync.WaitGroup
			read.Go(func() { assert.Equal(t, []string{fmt.Sprint(n)}, next(t, reader, 9)) })
			<-time.After(100 * time.Millisecond) // it waits by then
			appendText(t, ring, fmt.Sprint(n))
			read.Wait()
		}
		assert.Less(t, time.Since(begun), ringBound)
	})
}

func TestRingRefusals(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		db, _ := ringOf(t, s, 4)
		require.NoError(t, CreateRing(t.Context(), db, "log", 4))
		for name, size := range map[string]int{"log": 5, "": 1, "zero": 0, "less": -1, "more": maxRing + 1} {
			require.ErrorIs(t, CreateRing(t.Context(), db, name, size), notify.ErrOptions, name)
		}
		_, err := OpenRing(db, "")
		require.ErrorIs(t, err, notify.ErrOptions)
		none, err := OpenRing(db, "none")
		require.NoError(t, err)
		_, err = none.Append(t.Context(), nil)
		require.ErrorIs(t, err, ErrNoRing)
		_, err = none.Reader(0).Next(t.Context(), 1)
		require.ErrorIs(t, err, ErrNoRing)
		_, err = none.Head(t.Context())
		require.ErrorIs(t, err, ErrNoRing)
		_, err = none.Size(t.Context())
		require.ErrorIs(t, err, ErrNoRing)
		_, err = none.Reader(0).Next(t.Context(), 0)
		require.ErrorIs(t, err, notify.ErrOptions)
		for range 2 {
			require.NoError(t, none.Close())
		}
		_, err = none.Append(t.Context(), nil)
		require.ErrorIs(t, err, notify.ErrClosed)
		ring := openRing(t, db)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err = ring.Reader(0).Next(ctx, 1)
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
}
