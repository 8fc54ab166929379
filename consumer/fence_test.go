package consumer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
)

// A transaction that began to read before another member took over can't store
// its offset, and neither can a member that does not know of the takeover.
func TestFence(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		ctx := t.Context()
		claim := func(member string, reset bool) (*offset, position.Progress) {
			o, p, err := claim(ctx, db, "orders", "g", member, reset, func() (position.Progress, error) { return position.Progress{Settled: 7}, nil })
			require.NoError(t, err)
			return o, p
		}
		first, begun := claim("first", false)
		require.Equal(t, uint64(7), begun.Settled)
		begun.Done.Add(9, 10)
		begun.Done.Add(13, 13)
		require.NoError(t, first.store(ctx, db.Pool(), begun))

		tx, err := db.Pool().BeginTxx(ctx, nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(ctx, "INSERT INTO orders (payload) VALUES ('never')")
		require.NoError(t, err)
		var rows int
		require.NoError(t, tx.GetContext(ctx, &rows, "SELECT COUNT(*) FROM mqnotify_offset")) // takes its snapshot

		second, again := claim("second", false)
		require.Equal(t, begun, again, "the second goes on where the first was")
		require.NotEqual(t, first.fence, second.fence)
		require.ErrorIs(t, first.store(ctx, db.Pool(), position.Progress{Settled: 100}), errFenced)
		err = first.store(ctx, tx, position.Progress{Settled: 100})
		require.Error(t, err)
		require.False(t, permanent(err), "the member must stand by: %v", err)
		require.NoError(t, tx.Rollback())
		require.NoError(t, second.store(ctx, db.Pool(), position.Progress{Settled: 20}))
		require.Equal(t, uint64(20), stored(t, db, "g"))
		require.Equal(t, "second", mysqltest.Value[string](t, db.Pool(), "SELECT member FROM mqnotify_offset"))

		// Deleting the row fences every member off, even after the row was inserted again.
		do(t, db, "DELETE FROM mqnotify_offset")
		require.ErrorIs(t, second.store(ctx, db.Pool(), position.Progress{Settled: 100}), errFenced)
		third, anew := claim("third", false)
		require.Equal(t, uint64(7), anew.Settled)
		require.ErrorIs(t, first.store(ctx, db.Pool(), position.Progress{Settled: 100}), errFenced)
		require.ErrorIs(t, second.store(ctx, db.Pool(), position.Progress{Settled: 100}), errFenced)
		require.NoError(t, third.store(ctx, db.Pool(), position.Progress{Settled: 30}))
		fourth, reset := claim("fourth", true)
		require.Equal(t, uint64(7), reset.Settled)
		require.ErrorIs(t, third.store(ctx, db.Pool(), position.Progress{Settled: 100}), errFenced)
		require.NoError(t, fourth.store(ctx, db.Pool(), reset))
	})
}

// A store without a change counts as one row, whether the driver counts found
// or changed rows.
func TestFenceCountsFoundRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		for _, found := range []bool{false, true} {
			config.ClientFoundRows = found
			db := openConfig(t, config, "orders")
			o, p, err := claim(t.Context(), db, "orders", "g", "m", false, func() (position.Progress, error) { return position.Progress{}, nil })
			require.NoError(t, err)
			for range 2 {
				require.NoError(t, o.store(t.Context(), db.Pool(), p))
			}
		}
	})
}

// A damaged offset is an error, and is not guessed.
func TestOffsetDamaged(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		_, _, err := claim(t.Context(), db, "orders", "g", "m", false, func() (position.Progress, error) { return position.Progress{}, nil })
		require.NoError(t, err)
		do(t, db, "UPDATE mqnotify_offset SET delivered = X'0102'")
		var got collected
		err = run(t, db, "orders", Options{Group: "g"}, got.handler()).wait(t)
		require.ErrorIs(t, err, position.ErrDamaged)
		require.ErrorContains(t, err, `"g"`)
	})
}

// A group whose row is deleted begins again at From.
func TestOffsetDeletedInTheMiddle(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		var got collected
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", FlushInterval: -1}, got.handler())
		insert(t, db, "orders", "one")
		got.waitFor(t, "one")
		eventually(t, func() bool { return stored(t, db, "g") == 1 }, "the offset is not stored")
		do(t, db, "DELETE FROM mqnotify_offset")
		insert(t, db, "orders", "two")
		got.waitFor(t, "one", "two", "one", "two")
		require.NoError(t, c.end(t))
		require.Equal(t, uint64(2), stored(t, db, "g"))
	})
}
