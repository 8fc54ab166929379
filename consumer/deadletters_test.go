package consumer

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// lettersOf returns access to the dead letters of a group, or of all groups of a table.
func lettersOf(tb testing.TB, db *notify.DB, topic, group string) *Consumer {
	tb.Helper()
	c, err := New(db, topic, Options{Group: group})
	require.NoError(tb, err)
	return c
}

// failing is a handler that fails until it is repaired, and records the messages that it handles then.
type failing struct {
	collected
	mended atomic.Bool
}

func (f *failing) handler() Handler {
	return Each(func(ctx context.Context, m Message) error {
		if !f.mended.Load() {
			return fmt.Errorf("fails with %d: Disk full", m.ID)
		}
		return f.collected.handler().handle(ctx, nil, []Message{m})
	})
}

// deadLetter makes a dead letter of every row of a table, for each of the groups.
func deadLetter(t *testing.T, db *notify.DB, topic string, groups ...string) {
	t.Helper()
	for _, group := range groups {
		require.NoError(t, run(t, db, topic, Options{Group: group, From: "beginning", StopAtEnd: true, MaxAttempts: 1, Retry: atOnce},
			(&failing{}).handler()).wait(t))
	}
}

// shop creates a table that is not a message table, with rows.
func shop(t *testing.T, db *notify.DB, names ...string) {
	t.Helper()
	do(t, db, "CREATE TABLE shop (no INT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY, name VARCHAR(20))")
	for _, name := range names {
		_, err := db.Pool().ExecContext(t.Context(), "INSERT INTO shop (name) VALUES (?)", name)
		require.NoError(t, err)
	}
}

// A retry of a message goes, whole, only to the group whose dead letter it was; the dead letter is deleted with it.
func TestRetryOfAMessage(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		huge := strings.Repeat("\x00\xff'\\", 3<<20/4)
		_, err := db.Pool().ExecContext(t.Context(), `INSERT INTO orders (headers, payload) VALUES ('{"k": "ü\\"\\\\"}', ?), (NULL, 'small')`, []byte(huge))
		require.NoError(t, err)
		deadLetter(t, db, "orders", "mail", "bill/er")
		letters := lettersOf(t, db, "orders", "")

		all, err := letters.DeadLetters(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Len(t, all, 4)
		require.Equal(t, huge[:previewBytes], string(all[0].Payload))
		require.Equal(t, uint64(len(huge)), all[0].Size)
		require.Equal(t, map[string]string{"k": `ü"\`}, all[0].Headers)
		require.Equal(t, "fails with 1: Disk full", all[0].Error)
		require.False(t, all[0].FailedAt.IsZero())
		whole, err := letters.DeadLetters(t.Context(), DeadFilter{IDs: []uint64{all[0].ID}, Whole: true})
		require.NoError(t, err)
		require.Equal(t, huge, string(whole[0].Payload))
		for _, f := range []struct {
			group string
			DeadFilter
			want []int // of all
		}{
			{"mail", DeadFilter{}, []int{0, 1}},
			{"", DeadFilter{Error: "disk FULL"}, []int{0, 1, 2, 3}},
			{"", DeadFilter{Error: "%"}, nil},
			{"bill/er", DeadFilter{Error: "with 2"}, []int{3}},
			{"", DeadFilter{IDs: []uint64{all[1].ID, all[3].ID}}, []int{1, 3}},
			{"", DeadFilter{IDs: []uint64{}}, nil},
			{"", DeadFilter{After: all[0].ID, Limit: 2}, []int{1, 2}},
		} {
			some, err := lettersOf(t, db, "orders", f.group).DeadLetters(t.Context(), f.DeadFilter)
			require.NoError(t, err)
			var ids, want []uint64
			for _, l := range some {
				ids = append(ids, l.ID)
			}
			for _, i := range f.want {
				want = append(want, all[i].ID)
			}
			require.Equal(t, want, ids, f.DeadFilter)
		}

		got, other, columns := failing{}, failing{}, failing{}
		got.mended.Store(true)
		other.mended.Store(true)
		columns.mended.Store(true)
		run(t, db, "orders", Options{Group: "columns", Columns: []string{"id"}, From: "beginning"}, columns.handler())
		run(t, db, "orders", Options{Group: "bill/er"}, got.handler())
		run(t, db, "orders", Options{Group: "mail"}, other.handler())
		again, gone, err := lettersOf(t, db, "orders", "bill/er").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Len(t, again, 2)
		require.Empty(t, gone)
		insert(t, db, "orders", "last") // when it has come, what was before it has
		eventually(t, func() bool { return len(got.payloads()) == 3 && len(other.payloads()) == 1 }, "the messages do not come: %d", len(got.payloads()))
		require.Equal(t, []string{"last"}, other.payloads(), "the other group gets none")
		last := `{"id":` + fmt.Sprint(got.all[2].ID) + `}`
		eventually(t, func() bool { return slices.Contains(columns.payloads(), last) }, "the last row does not come")
		require.Equal(t, []string{`{"id":1}`, `{"id":2}`, last}, columns.payloads(), "nor does one that reads columns")
		require.Equal(t, []string{huge, "small", "last"}, got.payloads())
		require.Equal(t, map[string]string{"k": `ü"\`, retryHeader: "bill/er/1"}, got.all[0].Headers)
		require.Equal(t, again[0], got.all[0].ID)
		require.Equal(t, []string{"mail", "mail"}, mysqltest.Values[string](t, db.Pool(), "SELECT group_name FROM mqnotify_dead_letter"))

		n, err := letters.DeleteDead(t.Context(), DeadFilter{Limit: 1})
		require.NoError(t, err)
		require.Equal(t, 1, n)
		none, err := letters.DeadLetters(t.Context(), DeadFilter{IDs: []uint64{all[0].ID}})
		require.NoError(t, err)
		require.Empty(t, none)
		_, _, err = letters.RetryDead(t.Context(), DeadFilter{Limit: -1})
		require.ErrorIs(t, err, notify.ErrOptions)
		_, err = lettersOf(t, db, "nothing", "").DeadLetters(t.Context(), DeadFilter{})
		require.ErrorIs(t, err, notify.ErrNoTable)
	})
}

// A retry of a row makes its group read the current row, whether the group's consumer runs or starts later. No other group
// gets it. If it fails again, it is a dead letter again.
func TestRetryOfARow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		shop(t, db, "a", "b", "c")
		deadLetter(t, db, "shop", "mail", "bill")
		do(t, db, "UPDATE shop SET name = 'changed' WHERE no = 2")
		retry := func(group string) {
			again, gone, err := lettersOf(t, db, "shop", group).RetryDead(t.Context(), DeadFilter{Error: "with 2"})
			require.NoError(t, err)
			require.Equal(t, []uint64{2}, again)
			require.Empty(t, gone)
		}
		of := func(group string) DeadLetter {
			some, err := lettersOf(t, db, "shop", group).DeadLetters(t.Context(), DeadFilter{Error: "with 2"})
			require.NoError(t, err)
			require.Len(t, some, 1)
			return some[0]
		}
		retry("mail")
		retry("mail") // a second request changes nothing
		require.True(t, of("mail").Retrying)
		var got, other failing
		other.mended.Store(true)
		run(t, db, "shop", Options{Group: "bill"}, other.handler())
		run(t, db, "shop", Options{Group: "mail", MaxAttempts: 1, Retry: atOnce}, got.handler())
		eventually(t, func() bool { return !of("mail").Retrying }, "the row does not fail again")
		require.JSONEq(t, `{"no": 2, "name": "changed"}`, string(of("mail").Payload))

		got.mended.Store(true) // and now while the consumer runs
		retry("mail")
		eventually(t, func() bool { return len(got.payloads()) == 1 }, "the row does not come")
		require.JSONEq(t, `{"no": 2, "name": "changed"}`, got.payloads()[0])
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter WHERE group_name = 'mail'") == 2
		}, "the dead letter stays")
		require.Equal(t, 0, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_retry"))
		require.Equal(t, []string{"3", "3"}, mysqltest.Values[string](t, db.Pool(), "SELECT settled FROM mqnotify_offset"))
		do(t, db, "INSERT INTO shop (name) VALUES ('last')")
		eventually(t, func() bool { return len(other.payloads()) == 1 && len(got.payloads()) == 2 }, "the last row does not come")
		require.JSONEq(t, `{"no": 4, "name": "last"}`, other.payloads()[0], "the other group gets the new row alone")

		do(t, db, "DELETE FROM shop WHERE no = 1")
		again, missing, err := lettersOf(t, db, "shop", "bill").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Equal(t, []uint64{2, 3}, again)
		require.Len(t, missing, 1)
		eventually(t, func() bool { return len(other.payloads()) == 3 }, "the rows do not come")
		eventually(t, func() bool {
			return slices.Equal([]uint64{1}, mysqltest.Values[uint64](t, db.Pool(), "SELECT message_id FROM mqnotify_dead_letter WHERE group_name = 'bill'"))
		}, "the dead letters stay")
	})
}

// If a row is deleted between the request and the consumer's read, its dead letter stays and says so.
func TestRetryOfADeletedRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		shop(t, db, "a", "b")
		deadLetter(t, db, "shop", "mail")
		again, _, err := lettersOf(t, db, "shop", "").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Equal(t, []uint64{1, 2}, again)
		do(t, db, "DELETE FROM shop WHERE no = 1")
		got := failing{}
		got.mended.Store(true)
		require.NoError(t, run(t, db, "shop", Options{Group: "mail", StopAtEnd: true}, got.handler()).wait(t))
		require.Len(t, got.payloads(), 1)
		all, err := lettersOf(t, db, "shop", "").DeadLetters(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Len(t, all, 1)
		require.Equal(t, gone, all[0].Error)
		require.False(t, all[0].Retrying)
		n, err := lettersOf(t, db, "shop", "").DeleteDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Equal(t, 1, n)
	})
}

// Handlers of every kind handle a retried row once, also in a shared group, while several
// processes request the same retries.
func TestRetriesAtTheSameTime(t *testing.T) {
	mysqltest.NotShort(t, "TestRetryOfARow and TestRetryOfAMessage")
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL)")
		const rows = 120 // more than one statement asks for
		shop(t, db, numbers(1, rows)...)
		insert(t, db, "orders", numbers(1, rows)...)
		once := func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
			for _, m := range messages {
				name := m.Payload
				if m.IsRow {
					name = regexp.MustCompile(`"name":"(\d+)"`).FindSubmatch(m.Payload)[1]
				}
				if _, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", string(name)); err != nil {
					return err
				}
			}
			return nil
		}
		topics := []string{"shop", "orders"}
		if !mysqltest.Long() { // each keeps a processor busy for seconds
			one := mysqltest.Random(t).IntN(len(topics))
			topics = topics[one : one+1]
		}
		for _, topic := range topics {
			for name, c := range map[string]struct {
				share   bool
				handler Handler
			}{
				"tx":    {false, BatchTx(once)},
				"share": {true, EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error { return once(ctx, tx, []Message{m}) })},
				"batch": {false, Batch(func(ctx context.Context, messages []Message) error {
					tx, err := db.Pool().BeginTxx(ctx, nil)
					if err != nil {
						return err
					}
					return Handled(len(messages), errors.Join(once(ctx, tx, messages), tx.Commit(), errHandler))
				})},
			} {
				do(t, db, "DELETE FROM work", "DELETE FROM mqnotify_dead_letter")
				alwaysFails := &failing{}
				options := Options{Group: topic + name, From: "beginning", MaxAttempts: 1, Retry: atOnce, MembersShare: c.share}
				options.StopAtEnd = true
				require.NoError(t, run(t, db, topic, options, alwaysFails.handler()).wait(t))
				options.StopAtEnd = false
				consumers := []*running{run(t, db, topic, options, c.handler), run(t, db, topic, options, c.handler)}
				var asking sync.WaitGroup
				for range 4 {
					asking.Go(func() {
						_, _, err := lettersOf(t, db, topic, "").RetryDead(t.Context(), DeadFilter{})
						require.NoError(t, err)
					})
				}
				asking.Wait()
				eventually(t, func() bool {
					return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT id) FROM work") == rows &&
						mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter") == 0
				}, "the rows do not come: %s %s", topic, name)
				for _, c := range consumers {
					require.NoError(t, c.end(t))
				}
				require.Equal(t, rows, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM work"), "%s %s", topic, name)
				require.Equal(t, 0, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_retry"))
			}
		}
	})
}

// If its tables are missing, the error of a retry names the command that makes them.
func TestDeadLettersWithoutState(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "DROP TABLE mqnotify_retry")
		_, err := lettersOf(t, db, "orders", "").DeadLetters(t.Context(), DeadFilter{})
		require.ErrorIs(t, err, notify.ErrNoState)
		shop(t, db, "a")
		var got collected // and a consumer does without
		require.NoError(t, run(t, db, "shop", Options{Group: "g", From: "beginning", StopAtEnd: true}, got.handler()).wait(t))
		require.Len(t, got.payloads(), 1)
	})
}

// A retried row of a shared group comes although its partition's stored progress is ahead of the member's other partitions, as it is
// after another member, which had this partition, has ended.
func TestRetryOfARowInAPartitionAhead(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		shop(t, db, numbers(1, 20)...)
		options := Options{Group: "g", From: "beginning", MaxAttempts: 1, Retry: atOnce, MembersShare: true, Partitions: 4, StopAtEnd: true}
		var got failing
		require.NoError(t, run(t, db, "shop", options, got.handler()).wait(t))
		require.Equal(t, 20, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
		do(t, db, "INSERT INTO shop (name) VALUES ('21')")
		do(t, db, "UPDATE mqnotify_partition SET settled = 21 WHERE part = 3")
		got.mended.Store(true)
		options.StopAtEnd = false
		run(t, db, "shop", options, got.handler())
		again, _, err := lettersOf(t, db, "shop", "g").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Len(t, again, 20)
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter") == 0
		}, "dead letters stay")
		require.Equal(t, 0, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_retry"))
	})
}

// A retried message keeps its text where the payload is a text in another character set, however long it is.
func TestRetryOfATextOfAnotherCharacterSet(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "ALTER TABLE orders MODIFY payload LONGTEXT CHARACTER SET latin1 NOT NULL", "INSERT INTO orders (payload) VALUES ('é'), (REPEAT('é', 5000000))")
		deadLetter(t, db, "orders", "mail")
		again, _, err := lettersOf(t, db, "orders", "mail").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Equal(t, 2, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(DISTINCT payload) FROM orders"))
		require.Len(t, again, 2)
	})
}

// A retried message keeps the further columns of its row, by which the group selects messages, except unique ones. Without its row it is
// not published.
func TestRetryOfAMessageWithFurtherColumns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "ALTER TABLE orders ADD tenant INT NOT NULL DEFAULT 0, ADD request INT NULL, ADD UNIQUE (tenant, request), ADD twice INT AS (tenant * 2)",
			"INSERT INTO orders (payload, tenant, request) VALUES ('one', 5, 7), ('deleted', 5, 8)")
		options := Options{Group: "mail", From: "beginning", Where: "tenant = 5", StopAtEnd: true, MaxAttempts: 1, Retry: atOnce}
		got := failing{}
		require.NoError(t, run(t, db, "orders", options, got.handler()).wait(t))
		do(t, db, "DELETE FROM orders WHERE payload = 'deleted'")
		again, gone, err := lettersOf(t, db, "orders", "mail").RetryDead(t.Context(), DeadFilter{})
		require.NoError(t, err)
		require.Len(t, again, 1)
		require.Len(t, gone, 1)
		got.mended.Store(true)
		require.NoError(t, run(t, db, "orders", options, got.handler()).wait(t))
		require.Equal(t, []string{"one"}, got.payloads())
	})
}
