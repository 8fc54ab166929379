package consumer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
)

// Watch gets the position where reading begins and every move of the watermark, but none past an open gap. A reader that begins at
// such a position gets the rows that were not handled then, including a row that commits late.
func TestWatch(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "a", "b")
		told := make(chan string, 1000)
		var got collected
		run(t, db, "orders", Options{From: "last 1", Watch: func(position string) { told <- position }}, got.handler())
		next := func() position.Progress {
			select {
			case text := <-told:
				from, err := position.Parse(text)
				require.NoError(t, err)
				require.Equal(t, position.After, from.Kind)
				return from.Progress
			case <-time.After(patience):
				t.Fatal("nothing is told")
				return position.Progress{}
			}
		}
		begun := next()
		assert.True(t, begun.Has(1))
		assert.False(t, begun.Has(2))
		got.waitFor(t, "b")
		tx, err := db.Pool().BeginTxx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "INSERT INTO orders (payload) VALUES ('late')")
		require.NoError(t, err)
		insert(t, db, "orders", "c")
		got.waitFor(t, "b", "c")
		for p := begun; p.Settled != 2; p = next() {
			require.Less(t, p.Settled, uint64(3), "3 is on its way")
		}
		var resumed collected
		run(t, db, "orders", Options{From: "after 2+4"}, resumed.handler())
		require.NoError(t, tx.Commit())
		for p := begun; p.Settled != 4; p = next() {
			require.LessOrEqual(t, p.Settled, uint64(4))
		}
		got.waitFor(t, "b", "c", "late")
		resumed.waitFor(t, "late")
		require.Equal(t, []uint64{3, 4}, consumed(t, db, "orders", Options{From: "after 2"}))
		require.Empty(t, consumed(t, db, "orders", Options{From: "after 2+3-4"}))
		require.ErrorIs(t, run(t, db, "orders", Options{From: "after 5"}, got.handler()).wait(t), ErrBelowOffset)
	})
}
