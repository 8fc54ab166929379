package consumer

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

var errHandler = errors.New("this handler fails")

// atOnce is a policy without waits.
func atOnce() backoff.BackOff { return &backoff.ZeroBackOff{} }

// A message that fails is tried again; the messages behind it wait, and the order stays.
func TestRetry(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 3)...)
		var calls []string // by one goroutine at a time, as promised
		var waits []time.Duration
		options := Options{From: "beginning", StopAtEnd: true, Retry: func() backoff.BackOff {
			b := &recordedBackOff{BackOff: backoff.NewConstantBackOff(time.Millisecond), waits: &waits}
			return b
		}}
		c := run(t, db, "orders", options, Each(func(_ context.Context, m Message) error {
			calls = append(calls, string(m.Payload))
			if m.ID == 2 && len(calls) < 5 {
				return errHandler
			}
			return nil
		}))
		require.NoError(t, c.wait(t))
		require.Equal(t, []string{"1", "2", "2", "2", "2", "3"}, calls)
		require.Len(t, waits, 3)
	})
}

type recordedBackOff struct {
	backoff.BackOff
	waits *[]time.Duration
}

func (r *recordedBackOff) NextBackOff() time.Duration {
	wait := r.BackOff.NextBackOff()
	*r.waits = append(*r.waits, wait)
	return wait
}

// With a negative MaxAttempts a message never becomes a dead letter.
func TestRetryForEver(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		calls := 0
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", StopAtEnd: true, MaxAttempts: -1, Retry: atOnce, Logger: quiet},
			Each(func(context.Context, Message) error {
				if calls++; calls <= 50 {
					return errHandler
				}
				return nil
			}))
		require.NoError(t, c.wait(t))
		require.Equal(t, 51, calls)
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
	})
}

// Without a group there are no dead letters for a message that fails: Run's error names the message.
func TestHandlerError(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 3)...)
		for name, handler := range map[string]Handler{
			"each": Each(func(_ context.Context, m Message) error {
				if m.ID == 2 {
					return errHandler
				}
				return nil
			}),
			"batch": Batch(func(_ context.Context, messages []Message) error {
				for _, m := range messages {
					if m.ID == 2 {
						return errHandler
					}
				}
				return nil
			}),
		} {
			err := run(t, db, "orders", Options{From: "beginning", MaxAttempts: 3, Retry: atOnce}, handler).wait(t)
			var failed *HandlerError
			require.ErrorAs(t, err, &failed, name)
			require.ErrorIs(t, err, errHandler)
			require.Equal(t, HandlerError{Topic: "orders", ID: 2, Attempts: 3, Err: errHandler}, *failed)
			require.ErrorContains(t, err, "message 2 of orders failed 3 times")
		}
	})
}

// A policy that returns backoff.Stop ends the attempts for a message, and the
// reconnects of Run.
func TestBackOffStops(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		twice := func() backoff.BackOff { return backoff.WithMaxRetries(atOnce(), 2) }
		err := run(t, db, "orders", Options{From: "beginning", MaxAttempts: -1, Retry: twice},
			Each(func(context.Context, Message) error { return errHandler })).wait(t)
		var failed *HandlerError
		require.ErrorAs(t, err, &failed)
		require.Equal(t, 3, failed.Attempts)

		var got collected
		never := func() backoff.BackOff { return &backoff.StopBackOff{} }
		c := run(t, db, "orders", Options{Group: "g", Reconnect: never, From: "beginning"}, got.handler())
		got.waitFor(t, "one")
		mysqltest.KillSession(t, db.Pool(), lockHolder(t, db, "g"))
		require.Error(t, c.wait(t))
	})
}

// A panic is a failure like any other, with its value and place.
func TestPanic(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		err := run(t, db, "orders", Options{From: "beginning", MaxAttempts: 1},
			Each(func(context.Context, Message) error { panic("oh") })).wait(t)
		require.ErrorContains(t, err, "the handler panicked: oh")
		require.ErrorContains(t, err, "TestPanic", "with the stack")

		// In a transaction, its effects are rolled back.
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL)")
		calls := 0
		err = run(t, db, "orders", Options{Group: "g", From: "beginning", StopAtEnd: true, Retry: atOnce},
			EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
				if _, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID); err != nil {
					return err
				}
				if calls++; calls < 3 {
					panic(calls)
				}
				return nil
			})).wait(t)
		require.NoError(t, err)
		require.Equal(t, []int{1}, mysqltest.Values[int](t, db.Pool(), "SELECT id FROM work"))
	})
}

// The context of a handler that hangs ends after HandlerTimeout, and its
// messages count as failed.
func TestHandlerTimeout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		options := Options{
			Group: "g", From: "beginning", StopAtEnd: true,
			MaxAttempts: 2, Retry: atOnce, HandlerTimeout: 500 * time.Millisecond, // the beginning of a transaction too
		}
		c := run(t, db, "orders", options, Each(func(ctx context.Context, _ Message) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}))
		require.NoError(t, c.wait(t))
		require.Equal(t, []string{"the handler took longer than 500ms"}, mysqltest.Values[string](t, db.Pool(), "SELECT error FROM mqnotify_dead_letter"))

		// In a transaction they fail even if the handler returns nil, because the transaction is gone.
		options.Group = "tx"
		var calls atomic.Int64
		c = run(t, db, "orders", options, EachTx(func(ctx context.Context, _ *sqlx.Tx, _ Message) error {
			calls.Add(1)
			<-ctx.Done()
			return nil
		}))
		require.NoError(t, c.wait(t))
		require.GreaterOrEqual(t, calls.Load(), int64(2), "where a BEGIN takes too long attempts are counted anew")
		require.Equal(t, []string{"2: the handler took longer than 500ms"},
			mysqltest.Values[string](t, db.Pool(), "SELECT CONCAT(attempts, ': ', error) FROM mqnotify_dead_letter WHERE group_name = 'tx'"))
		require.Equal(t, uint64(1), stored(t, db, "tx"))
	})
}

// A handler that ends its transaction has broken the guarantee that
// its work and the offset are committed together: Run returns an error, once.
func TestHandlerEndsItsTransaction(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		for name, end := range map[string]func(tx *sqlx.Tx) error{
			"commit":    func(tx *sqlx.Tx) error { return tx.Commit() },
			"roll back": func(tx *sqlx.Tx) error { return tx.Rollback() },
			"fail":      func(tx *sqlx.Tx) error { return errors.Join(tx.Rollback(), errHandler) },
		} {
			calls := 0
			err := run(t, db, "orders", Options{Group: name, From: "beginning"}, EachTx(func(_ context.Context, tx *sqlx.Tx, _ Message) error {
				calls++
				return end(tx)
			})).wait(t)
			require.ErrorIs(t, err, errTxEnded, name)
			require.Equal(t, 1, calls, name)
			require.Zero(t, stored(t, db, name), name)
		}
	})
}

// A Handler without a function is refused before anything is read.
func TestHandlerRefused(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		c, err := New(db, "orders", Options{})
		require.NoError(t, err)
		require.ErrorIs(t, c.Run(t.Context(), Handler{}), notify.ErrOptions)
		err = c.Run(t.Context(), BatchTx(func(context.Context, *sqlx.Tx, []Message) error { return nil }))
		require.ErrorIs(t, err, notify.ErrOptions)
		require.ErrorContains(t, err, "Group")
	})
}

// Large rows make small pages, so that memory stays bounded, although the sizes of earlier
// rows do not predict the next ones.
func TestLargeRows(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "INSERT INTO orders (payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 500) SELECT 'x' FROM n",
			"INSERT INTO orders (payload) WITH RECURSIVE n AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM n WHERE i < 30) SELECT REPEAT('x', 1 << 20) FROM n")
		rows, largest := 0, 0
		err := run(t, db, "orders", Options{From: "beginning", StopAtEnd: true}, Batch(func(_ context.Context, messages []Message) error {
			bytes := 0
			for _, m := range messages {
				bytes += len(m.Payload)
			}
			rows += len(messages)
			largest = max(largest, bytes)
			return nil
		})).wait(t)
		require.NoError(t, err)
		require.Equal(t, 530, rows)
		require.LessOrEqual(t, largest, pageBytes+1<<20)
	})
}

// After a lost connection a consumer begins with a smaller page: the page may have been too large to be read in the time that a
// statement may take.
func TestSmallerPageAfterALoss(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 1000)...)
		sizes := make(chan int, 200)
		handler := Batch(func(_ context.Context, messages []Message) error {
			sizes <- len(messages)
			if messages[0].ID == 1 {
				for _, id := range mysqltest.Sessions(t, s.Admin(t), db.Name(), "") {
					mysqltest.KillSession(t, s.Admin(t), id)
				}
			}
			return nil
		})
		run(t, db, "orders", Options{From: "beginning", PageRows: 100}, handler)
		require.Equal(t, 100, mysqltest.Receive(t, sizes))
		for at := 100; ; {
			size := mysqltest.Receive(t, sizes)
			if at += size; size < 100 {
				require.Equal(t, 25, size)
				return
			}
			require.Less(t, at, 1000, "no smaller page")
		}
	})
}
