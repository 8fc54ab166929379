package consumer

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/table"
	"github.com/mqnotify/mqnotify/notify"
)

func statusOf(tb testing.TB, db *notify.DB, topic string) *Status {
	tb.Helper()
	status, err := statusBy(tb, db, topic, "")
	require.NoError(tb, err)
	return status
}

func statusBy(tb testing.TB, db *notify.DB, topic, key string) (*Status, error) {
	tb.Helper()
	c, err := New(db, topic, Options{Key: key})
	require.NoError(tb, err)
	return c.Status(context.WithoutCancel(tb.Context()))
}

// group returns the status of one group, without the values that depend on the clock.
func (s *Status) group(tb testing.TB, name string) GroupStatus {
	tb.Helper()
	at := slices.IndexFunc(s.Groups, func(g GroupStatus) bool { return g.Group == name })
	require.GreaterOrEqual(tb, at, 0, "%+v", s)
	g := s.Groups[at]
	g.Moved = 0
	return g
}

// keep writes an offset as a member would.
func keep(tb testing.TB, db *notify.DB, group string, p position.Progress) {
	tb.Helper()
	_, err := db.Pool().ExecContext(tb.Context(), `INSERT INTO mqnotify_offset (topic, group_name, settled, delivered, fence, version, member)
		VALUES ('orders', ?, ?, ?, 1, 1, 'm')`, group, p.Settled, p.Done.Encode(p.Settled))
	require.NoError(tb, err)
}

// A group's status follows the work of its members.
func TestStatus(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		require.Equal(t, &Status{Topic: "orders"}, statusOf(t, db, "orders"))

		insert(t, db, "orders", "a", "b")
		late := newConn(t, db)
		onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, db, "orders", "c", "d")
		var got collected
		options := Options{Group: "g", From: "beginning", Member: "me", FlushInterval: -1}
		r := run(t, db, "orders", options, got.handler())
		want := GroupStatus{Group: "g", Member: "me", Settled: 2, Done: 2, Gaps: 1, Behind: 1}
		eventually(t, func() bool {
			status, err := statusBy(t, db, "orders", "id")
			return err == nil && len(status.Groups) == 1 && status.Groups[0].Settled == 2 && status.Groups[0].Done == 2
		}, "the offset does not move")
		want.Session = lockHolder(t, db, "g")
		require.NotZero(t, want.Session)
		status := statusOf(t, db, "orders")
		require.EqualValues(t, 5, status.Head)
		require.Equal(t, want, status.group(t, "g"))

		// Rows that are committed while no member is active wait.
		require.NoError(t, r.end(t))
		eventually(t, func() bool { return lockHolder(t, db, "g") == 0 }, "the server does not see the session's end")
		onConn(t, late, "COMMIT")
		insert(t, db, "orders", "e")
		want.Session, want.Behind, want.Waiting = 0, 2, 2
		require.Equal(t, want, statusOf(t, db, "orders").group(t, "g"))

		run(t, db, "orders", options, got.handler())
		want = GroupStatus{Group: "g", Member: "me", Settled: 6}
		eventually(t, func() bool { return stored(t, db, "g") == 6 }, "the offset does not move")
		want.Session = lockHolder(t, db, "g")
		require.Equal(t, want, statusOf(t, db, "orders").group(t, "g"))
	})
}

// The status is right for offsets at any place of a table, and does not count what belongs to other groups.
func TestStatusOfGroups(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for range 20 {
			insert(t, db, "orders", "x")
		}
		do(t, db, "DELETE FROM orders WHERE id IN (9, 15, 20)")
		var done position.Set
		for _, p := range []position.Span{{Lo: 8, Hi: 8}, {Lo: 11, Hi: 12}, {Lo: 16, Hi: 17}} { // 6-7, 9-10 and 13-15 are open
			done.Add(p.Lo, p.Hi)
		}
		keep(t, db, "b", position.Progress{Settled: 5, Done: done})
		keep(t, db, "B", position.Progress{Settled: 19})
		keep(t, db, "a", position.Progress{})
		do(t, db, "UPDATE mqnotify_offset SET updated_at = NOW(6) - INTERVAL 90 SECOND WHERE group_name = 'a'",
			"INSERT INTO mqnotify_offset SELECT 'Orders', group_name, 3, '', 1, 1, 'm', updated_at FROM mqnotify_offset")
		for _, letter := range []string{"'orders', 'b', 1", "'orders', 'b', 2", "'Orders', 'b', 1", "'orders', 'B', 1"} {
			do(t, db, "INSERT INTO mqnotify_dead_letter (topic, group_name, message_id, payload, attempts, error) VALUES ("+letter+", '', 1, '')")
		}
		status := statusOf(t, db, "orders")
		require.EqualValues(t, 19, status.Head)
		require.Len(t, status.Groups, 3)
		assert.Equal(t, GroupStatus{Group: "a", Member: "m", Behind: 19, Waiting: 17}, status.group(t, "a"))
		assert.Equal(t, GroupStatus{Group: "b", Member: "m", Settled: 5, Done: 5, Gaps: 3, Behind: 9, Waiting: 7, DeadLetters: 2},
			status.group(t, "b"))
		assert.Equal(t, GroupStatus{Group: "B", Member: "m", Settled: 19, DeadLetters: 1}, status.group(t, "B"))
		for _, g := range status.Groups {
			past := time.Duration(0)
			if g.Group == "a" {
				past = 90 * time.Second
			}
			assert.GreaterOrEqual(t, g.Moved, past, g.Group)
			assert.Less(t, g.Moved, past+patience, g.Group)
		}

		// The ids of an emptied table continue, those of a truncated one begin again.
		do(t, db, "DELETE FROM orders")
		assert.False(t, statusOf(t, db, "orders").group(t, "B").BelowOffset)
		do(t, db, "TRUNCATE TABLE orders")
		assert.True(t, statusOf(t, db, "orders").group(t, "B").BelowOffset)
		assert.False(t, statusOf(t, db, "orders").group(t, "a").BelowOffset)
	})
}

// Counting has a limit, for rows and for gaps, and the status shows when it was reached.
func TestStatusCountsHaveALimit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "x")
		for rows := 1; rows <= countLimit; rows *= 2 {
			do(t, db, "INSERT INTO orders (payload) SELECT 'x' FROM orders")
		}
		head := statusOf(t, db, "orders").Head
		after := mysqltest.Value[uint64](t, db.Pool(), "SELECT id FROM orders ORDER BY id DESC LIMIT 1 OFFSET ?", countLimit)
		keep(t, db, "all", position.Progress{Settled: after})
		keep(t, db, "more", position.Progress{Settled: after - 1})
		const rows = 500 // the newest, whose ids are those of one statement
		for group, gaps := range map[string]int{"gaps": maxRanges - 1, "more gaps": maxRanges + 1} {
			p := position.Progress{Settled: head - rows}
			for range gaps { // two ids each
				p.Done.Add(max(p.Settled, p.Done.Max())+3, max(p.Settled, p.Done.Max())+3)
			}
			keep(t, db, group, p)
		}
		status := statusOf(t, db, "orders")
		all, tooMany := status.group(t, "all"), status.group(t, "more")
		assert.Equal(t, []any{countLimit, false}, []any{all.Waiting, all.MoreWaiting})
		assert.Equal(t, []any{countLimit, true}, []any{tooMany.Waiting, tooMany.MoreWaiting})
		assert.Equal(t, head-after+1, status.group(t, "more").Behind)
		gaps := status.group(t, "gaps")
		assert.Equal(t, []any{rows - gaps.Gaps, false}, []any{gaps.Waiting, gaps.MoreWaiting})
		more := status.group(t, "more gaps")
		assert.Equal(t, maxRanges+1, more.Gaps)
		assert.EqualValues(t, rows-more.Gaps, more.Behind)
		// The rows behind all done ids count first, and are one of the ranges.
		assert.Equal(t, []any{rows - 3*more.Gaps + 2*(maxRanges-1), true}, []any{more.Waiting, more.MoreWaiting})
	})
}

func TestStatusErrors(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "x")
		do(t, db, "CREATE TABLE plain (a VARCHAR(9), n INT NOT NULL UNIQUE)", "CREATE VIEW v AS SELECT * FROM orders",
			"INSERT INTO plain VALUES ('x', 7)")
		for topic, want := range map[string]error{"nothing": notify.ErrNoTable, "v": table.ErrView, "plain": table.ErrNoKey} {
			_, err := statusBy(t, db, topic, "")
			require.ErrorIs(t, err, want)
		}
		status, err := statusBy(t, db, "plain", "n")
		require.NoError(t, err)
		require.Equal(t, &Status{Topic: "plain", Head: 7}, status)
		_, err = statusBy(t, db, "plain", "m")
		require.ErrorIs(t, err, table.ErrNoColumn)

		keep(t, db, "g", position.Progress{})
		do(t, db, "UPDATE mqnotify_offset SET delivered = 'nonsense'")
		_, err = statusBy(t, db, "orders", "")
		require.ErrorIs(t, err, position.ErrDamaged)

		do(t, db, "DROP TABLE mqnotify_offset")
		status, err = statusBy(t, db, "orders", "")
		require.ErrorIs(t, err, notify.ErrNoState)
		require.Equal(t, &Status{Topic: "orders", Head: 1}, status)
	})
}
