package consumer

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/wake"
	"github.com/mqnotify/mqnotify/notify"
)

// publishKey inserts a message with a key.
func publishKey(tb testing.TB, db *notify.DB, key, payload string) {
	tb.Helper()
	_, err := db.Pool().ExecContext(tb.Context(), "INSERT INTO orders (headers, payload) VALUES (JSON_OBJECT('key', ?), ?)", key, payload)
	require.NoError(tb, err)
}

// snapshotOf returns which session holds which lock of the group.
func snapshotOf(tb testing.TB, db *notify.DB, group string) snapshot {
	tb.Helper()
	row, err := readGroup(tb.Context(), db.Pool(), "orders", group)
	require.NoError(tb, err)
	s, shared, err := decodeSharing("orders", group, row.Delivered)
	require.NoError(tb, err)
	if !shared {
		return snapshot{}
	}
	now, err := readSnapshot(tb.Context(), db.Pool(), s, sharePrefix(db.Name(), "orders", group))
	require.NoError(tb, err)
	return now
}

// fairly waits until that many members have fair shares: their numbers of partitions differ by at most one,
// and no partition is free.
func fairly(tb testing.TB, db *notify.DB, group string, members int) {
	tb.Helper()
	require.Eventually(tb, func() bool {
		s := snapshotOf(tb, db, group)
		owns := make(map[uint64]int)
		for _, owner := range s.owners {
			if owner == 0 {
				return false
			}
			owns[owner]++
		}
		least, most := len(s.owners), 0
		for _, n := range owns {
			least, most = min(least, n), max(most, n)
		}
		return len(owns) == members && most-least <= 1
	}, 4*patience, 20*time.Millisecond, "%d members do not share the group", members)
}

// When members of one process join and leave, the shares become fair each time, and every message is
// done exactly once.
func TestShare(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL, member INT NOT NULL)")
		member := func(n int) *running {
			return run(t, db, "orders", Options{Group: "g", From: "beginning", MembersShare: true, Member: strconv.Itoa(n)},
				EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
					_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?, ?)", m.ID, n)
					return err
				}))
		}
		published := 0
		publish := func() {
			for range 100 {
				publishKey(t, db, fmt.Sprint("k", published%40), strconv.Itoa(published))
				published++
			}
		}
		publish()
		a := member(1)
		fairly(t, db, "g", 1)
		b := member(2)
		publish()
		fairly(t, db, "g", 2)
		publish()
		c := member(3)
		fairly(t, db, "g", 3)
		publish()
		require.NoError(t, a.end(t))
		fairly(t, db, "g", 2)
		publish()
		eventually(t, func() bool { return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM work") >= published }, "not all is done")
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT part) FROM mqnotify_partition WHERE settled = ?", published) == 64
		}, "not all is settled")
		require.NoError(t, b.end(t))
		require.NoError(t, c.end(t))
		require.Equal(t, published, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT id) FROM work"))
		require.Equal(t, published, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM work"))
		require.Equal(t, 3, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT member) FROM work"))
		require.Equal(t, 64, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT part) FROM mqnotify_partition WHERE settled = ?", published))
	})
}

// Members can't disagree, because the group stores how it is shared.
func TestShareDisagreement(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 10)...)
		nothing := Each(func(context.Context, Message) error { return nil })
		end := func(o Options) error {
			o.Group, o.From, o.StopAtEnd = "g", "beginning", true
			return run(t, db, "orders", o, nothing).wait(t)
		}
		require.NoError(t, end(Options{MembersShare: true, Partitions: 8}))
		require.Equal(t, 8, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_partition WHERE settled = 10"))
		require.NoError(t, end(Options{MembersShare: true}), "what the group has")
		require.NoError(t, end(Options{MembersShare: true, PartitionBy: "key"}), "the default, by its name")
		for want, o := range map[string]Options{
			"8 partitions, not 9":               {MembersShare: true, Partitions: 9},
			"by header key, not by header kind": {MembersShare: true, PartitionBy: "kind"},
			"not by column ID":                  {MembersShare: true, PartitionBy: "ID"},
			"set MembersShare":                  {},
			"MembersShare (":                    {Reset: true},
		} {
			err := end(o)
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, want)
		}

		// A reset fails while a member is active.
		a := run(t, db, "orders", Options{Group: "g", MembersShare: true}, nothing)
		fairly(t, db, "g", 1)
		require.ErrorIs(t, end(Options{MembersShare: true, Reset: true, Partitions: 3}), notify.ErrOptions)
		require.NoError(t, a.end(t))
		eventually(t, func() bool { return len(snapshotOf(t, db, "g").fair()) == 0 }, "the member does not leave")
		require.NoError(t, end(Options{MembersShare: true, Reset: true, Partitions: 3, PartitionBy: "kind"}))
		require.Len(t, snapshotOf(t, db, "g").owners, 3)
		require.ErrorIs(t, end(Options{MembersShare: true, Partitions: 8}), notify.ErrOptions)

		for _, o := range []Options{
			{MembersShare: true}, {Group: "g", Partitions: 2}, {Group: "g", PartitionBy: "k"},
			{Group: "g", MembersShare: true, Partitions: 257}, {Group: "g", MembersShare: true, Partitions: -1},
			{Group: "g", MembersShare: true, PartitionBy: `a"b`},
			{Group: "g", MembersShare: true, Mode: modeHandshake}, {Group: "g", MembersShare: true, Flag: flagRow},
		} {
			_, err := New(db, "orders", o)
			require.ErrorIs(t, err, notify.ErrOptions, "%+v", o)
		}
	})
}

// A reset whose transaction fails with a passing error is not forgotten.
func TestShareResetAgain(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "1", "2")
		var got collected
		o := Options{Group: "g", From: "beginning", MembersShare: true, Partitions: 2}
		first := o
		first.StopAtEnd = true
		require.NoError(t, run(t, db, "orders", first, got.handler()).wait(t))
		tries, stop := mysqltest.FailWith(t, db.Pool(), "mqnotify_partition", 1205)
		o.Reset = true
		c := run(t, db, "orders", o, got.handler())
		mysqltest.Eventually(t, "the reset has failed", func() bool { return tries() > 0 })
		stop()
		mysqltest.Eventually(t, "both messages are delivered again", func() bool { return len(got.payloads()) == 4 })
		require.NoError(t, c.end(t))
	})
}

// When the members of a group that had one reader share it, the group continues where it was, gaps included,
// after that reader has ended.
func TestShareGoesOn(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "1")
		late := newConn(t, db)
		onConn(t, late, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('2')")
		insert(t, db, "orders", "3", "4")
		var first, second collected
		a := run(t, db, "orders", Options{Group: "g", From: "beginning", FlushInterval: -1}, first.handler())
		first.waitFor(t, "1", "3", "4")
		b := run(t, db, "orders", Options{Group: "g", MembersShare: true}, second.handler())
		standingBy(t, db, 1)
		insert(t, db, "orders", "5")
		first.waitFor(t, "1", "3", "4", "5")
		require.NoError(t, a.end(t))
		fairly(t, db, "g", 1)
		onConn(t, late, "COMMIT")
		insert(t, db, "orders", "6")
		second.waitFor(t, "2", "6")
		eventually(t, func() bool { return stored(t, db, "g") == 6 }, "the group's own offset does not move")
		require.NoError(t, b.end(t))
	})
}

// A message that always fails blocks its member's partitions until it is a dead letter, and no others.
func TestShareDeadLetter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for n := range 20 {
			publishKey(t, db, strconv.Itoa(n), strconv.Itoa(n))
		}
		var handled atomic.Int64
		handler := Each(func(_ context.Context, m Message) error {
			if string(m.Payload) == "7" {
				return errors.New("poison")
			}
			handled.Add(1)
			return nil
		})
		options := Options{Group: "g", From: "beginning", MembersShare: true, Partitions: 4, MaxAttempts: 2}
		a, b := run(t, db, "orders", options, handler), run(t, db, "orders", options, handler)
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter WHERE group_name = 'g'") == 1
		}, "no dead letter")
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_partition WHERE settled = 20") == 4
		}, "not all is done")
		require.NoError(t, a.end(t))
		require.NoError(t, b.end(t))
		require.GreaterOrEqual(t, handled.Load(), int64(19))
	})
}

// While members wait, the coordinator sends about one poll a second, and each other member as much as any
// consumer of a group.
func TestShareIdle(t *testing.T) {
	mysqltest.NotShort(t, "TestIdleCost")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := openConfig(t, config, "orders")
		require.NoError(t, wake.Install(t.Context(), db, wake.Options{Logger: testLogger(t)}, "orders"))
		more := mysqltest.Size(2, 6, 6)
		window := mysqltest.Size(2*time.Second, 5*time.Second, time.Minute)
		config = config.Clone()
		commands := mysqltest.CountCommands(config)
		member := func() {
			var got collected
			run(t, openConfig(t, config), "orders", Options{Group: "g", MembersShare: true}, got.handler())
		}
		quietly := func(members int) {
			fairly(t, db, "g", members)
			eventually(t, func() bool { return during(t, commands, time.Second) < 10 }, "what the rebalance began does not end")
		}
		member()
		quietly(1)
		// On a busy machine members lose connections, which costs statements, so several windows are tried.
		below := func(limit float64) (rate float64) {
			for range 6 {
				if rate = during(t, commands, window); rate < limit {
					break
				}
			}
			require.Less(t, rate, limit)
			return rate
		}
		one := below(6)
		for range more {
			member()
		}
		quietly(1 + more)
		limit := mysqltest.Size(1.5, 0.6, 0.6) // a statement or two come by chance in a short window
		each := (below(one+limit*float64(more)) - one) / float64(more)
		t.Logf("%.2f statements a second with one member, the leader and coordinator; %.3f for each further one", one, each)
	})
}
