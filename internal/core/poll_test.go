package core_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// While idle, the waits grow to the maximum. The first row resets them. Every poll
// costs one statement, by the server's own counter.
func TestPollGrowsAndFallsBack(t *testing.T) {
	const least, most = 10 * time.Millisecond, 150 * time.Millisecond
	growing := []time.Duration{least, least, 2 * least, 3 * least, 5 * least, 8 * least, 13 * least, most, most}
	sources := map[string]struct {
		source core.Source
		change func(tb testing.TB, db *core.DB)
	}{
		"largest id": {core.LargestID("orders", "id"), insert},
		"counter":    {core.FlagCounter("orders"), setFlag},
		"row":        {core.FlagRow("orders"), setFlag},
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		for name, poll := range sources {
			if testing.Short() && name != "row" {
				continue // TestWaiters has the others
			}
			t.Run(name, func(t *testing.T) {
				db := openTopic(t, own)
				waits := &spy{policy: &notify.Fibonacci{Min: least, Max: most}}
				waiter := core.NewPoll(openSession(t, db, never), poll.source, waits)
				seen, err := waiter.Head(t.Context())
				require.NoError(t, err)
				for range mysqltest.Size(1, 2, 2) {
					begun := len(waits.given())
					waited := mysqltest.Result(func() core.Head {
						head, err := waiter.Wait(t.Context(), seen, time.Hour)
						assert.NoError(t, err)
						return head
					})
					all := waits.await(t, begun+len(growing))
					require.Equal(t, growing, all[begun:begun+len(growing)])

					// At the maximum there is one poll in each, and nothing else.
					start, before, questions := time.Now(), len(waits.given()), own.Questions(t)
					n := len(waits.given())
					all = waits.await(t, n+5)
					asked := int(own.Questions(t)-questions) - 1 // this question itself
					assert.GreaterOrEqual(t, asked, len(all)-n-1)
					assert.LessOrEqual(t, asked, len(waits.given())-before+1)
					assert.Greater(t, time.Since(start), 4*most)
					require.Equal(t, most, all[len(all)-1])

					poll.change(t, db)
					seen = mysqltest.Receive(t, waited)
				}
			})
		}
	})
}

// A policy that returns backoff.Stop, as backoff's default does after 15 minutes, is reset.
func TestPollOutlivesItsPolicy(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		waits := &spy{policy: backoff.WithMaxRetries(backoff.NewConstantBackOff(time.Millisecond), 3)}
		waiter := core.NewPoll(openSession(t, db, 0), core.LargestID("orders", "id"), waits)
		head, err := waiter.Wait(t.Context(), core.Head{}, 3*time.Second)
		require.NoError(t, err)
		assert.Equal(t, core.Head{}, head)
		once := []time.Duration{time.Millisecond, time.Millisecond, time.Millisecond, backoff.Stop}
		assert.Equal(t, once, waits.given(), "it does not spin")

		waited := mysqltest.Result(func() error {
			_, err := waiter.Wait(t.Context(), core.Head{}, patience)
			return err
		})
		waits.await(t, 2*len(once))
		assert.Equal(t, append(once, once...), waits.given())
		require.NoError(t, waiter.Close())
		require.Error(t, mysqltest.Receive(t, waited))
	})
}

// The waits of consumers for a Poll are 10 ms to 1 s.
func TestPollWithFibonacci(t *testing.T) {
	if testing.Short() {
		t.Skip("TestPollGrowsAndFallsBack counts the same statements")
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		own := s.Start(t)
		db := openTopic(t, own)
		waiter := core.NewPoll(openSession(t, db, never), core.LargestID("orders", "id"), &notify.Fibonacci{Jitter: 0.1})
		questions := own.Questions(t)
		bound := mysqltest.Size(3, 6, 6)
		_, err := waiter.Wait(t.Context(), core.Head{}, time.Duration(bound)*time.Second)
		require.NoError(t, err)
		// Waits of 10, 10, 20 ... 550, 890 ms make 10 polls in 1.4 to 1.5 s, or in the whole time on a busy
		// machine; after that there is one a second.
		asked := own.Questions(t) - questions - 1
		assert.GreaterOrEqual(t, asked, uint64(10))
		assert.LessOrEqual(t, asked, uint64(11+bound))
	})
}

// The published form: a reader that finds the row deletes it, and so notices the next change.
func TestFlagRow(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		flag := notify.Flag{Topic: "orders"}
		waiter := core.NewPoll(openSession(t, db, 0), core.FlagRow("orders"), newSpy())
		count := func() (n int) {
			require.NoError(t, db.Pool().Get(&n, "SELECT COUNT(*) FROM "+schema.FlagTable))
			return n
		}
		for _, statement := range []string{ // of another topic, which stays
			"INSERT INTO mqnotify_flag (topic, counter) VALUES ('Orders', 1)",
			"INSERT IGNORE INTO mqnotify_flag (topic, counter) VALUES ('orders', 1)",
			"INSERT IGNORE INTO mqnotify_flag (topic, counter) VALUES ('orders', 1)",
		} {
			mysqltest.Exec(t, db.Pool(), statement)
		}
		seen, err := waiter.Head(t.Context())
		require.NoError(t, err)
		value, ok := seen.Value()
		assert.True(t, ok)
		assert.EqualValues(t, 1, value)
		assert.Equal(t, 1, count(), "the row was taken, the other topic's was not")
		for range 3 { // the same value each time, and each time a change
			require.NoError(t, flag.Set(t.Context(), db.Pool()))
			head, err := waiter.Wait(t.Context(), seen, time.Hour)
			require.NoError(t, err)
			assert.Equal(t, seen, head)
			assert.Equal(t, 1, count())
			head, err = waiter.Wait(t.Context(), seen, 20*time.Millisecond)
			require.NoError(t, err)
			assert.Equal(t, core.Head{}, head, "nothing new")
		}
	})
}

// A writer whose trigger found the row locks it until it commits. The reader can't delete
// it in the meantime: it returns what it saw, and the row stays for the writer's change.
func TestFlagRowOfAnOpenWriter(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		session := openSession(t, db, 0)
		waiter := core.NewPoll(session, core.FlagRow("orders"), newSpy())
		setFlag(t, db)
		writer, err := db.Pool().Beginx()
		require.NoError(t, err)
		_, err = writer.Exec("INSERT IGNORE INTO mqnotify_flag (topic, counter) VALUES ('orders', 1)")
		require.NoError(t, err)
		for range 2 {
			_, err := waiter.Wait(t.Context(), core.Head{}, time.Hour)
			require.NoError(t, err)
		}
		require.NoError(t, session.Err())
		require.NoError(t, writer.Commit())
		head, err := waiter.Wait(t.Context(), core.Head{}, time.Hour)
		require.NoError(t, err)
		assert.NotEqual(t, core.Head{}, head)
		head, err = waiter.Wait(t.Context(), core.Head{}, 20*time.Millisecond)
		require.NoError(t, err)
		assert.Equal(t, core.Head{}, head)
	})
}

func TestFlag(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		ctx := t.Context()
		for _, topic := range []string{"orders", "o'r`d\"e\\rs", "größe 注文"} {
			flag := notify.Flag{Topic: topic}
			counter, err := flag.Read(ctx, db.Pool())
			require.NoError(t, err)
			assert.Zero(t, counter)
			was, err := flag.Reset(ctx, db.Pool())
			require.NoError(t, err)
			assert.False(t, was)

			var all sync.WaitGroup
			for range 8 {
				all.Go(func() {
					for range 10 {
						assert.NoError(t, flag.Set(ctx, db.Pool()))
					}
				})
			}
			all.Wait()
			counter, err = flag.Read(ctx, db.Pool())
			require.NoError(t, err)
			assert.EqualValues(t, 80, counter)
			counter, err = notify.Flag{Topic: topic + "x"}.Read(ctx, db.Pool())
			require.NoError(t, err)
			assert.Zero(t, counter)
			was, err = flag.Reset(ctx, db.Pool())
			require.NoError(t, err)
			assert.True(t, was)
			counter, err = flag.Read(ctx, db.Pool())
			require.NoError(t, err)
			assert.Zero(t, counter)
		}

		mysqltest.Exec(t, db.Pool(), "DROP TABLE "+schema.FlagTable)
		flag := notify.Flag{Topic: "orders"}
		require.ErrorContains(t, flag.Set(ctx, db.Pool()), `notify: set the flag of "orders": `)
		_, err := flag.Read(ctx, db.Pool())
		require.ErrorContains(t, err, `notify: read the flag of "orders": `)
		_, err = flag.Reset(ctx, db.Pool())
		require.ErrorContains(t, err, `notify: reset the flag of "orders": `)
	})
}

// A table with the largest possible id, and names with every legal character.
func TestLargestID(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		mysqltest.Exec(t, db.Pool(), "CREATE TABLE `o``r d'e\"rs` (`k``e'y` BIGINT UNSIGNED PRIMARY KEY)")
		waiter := core.NewPoll(openSession(t, db, 0), core.LargestID("o`r d'e\"rs", "k`e'y"), newSpy())
		head, err := waiter.Head(t.Context())
		require.NoError(t, err)
		assert.Equal(t, core.Head{}, head)
		mysqltest.Exec(t, db.Pool(), "INSERT INTO `o``r d'e\"rs` VALUES (18446744073709551615)")
		head, err = waiter.Wait(t.Context(), head, time.Hour)
		require.NoError(t, err)
		value, ok := head.Value()
		assert.True(t, ok)
		assert.Equal(t, uint64(18446744073709551615), value)
	})
}

// The session of a poll also runs other statements, however long they take.
func TestPollSharesItsSession(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		session := openSession(t, db, 0)
		waiter := core.NewPoll(session, core.LargestID("orders", "id"), newSpy())
		ctx, cancel := context.WithCancel(t.Context())
		waited := mysqltest.Result(func() error {
			_, err := waiter.Wait(ctx, core.Head{}, time.Hour)
			return err
		})
		long := mysqltest.Size(2, 11, 11) // 11 s are longer than an answer may take
		require.Equal(t, 0, value[int](t, session, "SELECT SLEEP(?)", long))
		cancel()
		require.ErrorIs(t, mysqltest.Receive(t, waited), context.Canceled)
	})
}
