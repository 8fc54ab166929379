package consumer

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// After the end of Run's context the handler finishes its message: the message counts and is stored,
// and no further one begins.
func TestStopFinishesTheMessageInHand(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL)")
		insert(t, db, "orders", numbers(1, 5)...)
		for _, tx := range []bool{false, true} {
			group := fmt.Sprint("g", tx)
			entered, release := make(chan struct{}), make(chan struct{})
			work := func(ctx context.Context, m Message) error {
				if m.ID == 2 {
					close(entered)
					<-release
				}
				return ctx.Err() // not ended: StopTimeout has not passed
			}
			handler := Each(work)
			if tx {
				handler = EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
					if err := work(ctx, m); err != nil {
						return err
					}
					_, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID)
					return err
				})
			}
			c := run(t, db, "orders", Options{Group: group, From: "beginning", FlushInterval: time.Hour}, handler)
			<-entered
			c.stop()
			close(release)
			require.NoError(t, c.wait(t))
			require.Equal(t, uint64(2), stored(t, db, group))
		}
		require.Equal(t, []int{1, 2}, mysqltest.Values[int](t, db.Pool(), "SELECT id FROM work ORDER BY id"))
	})
}

// The context of a handler that does not return ends StopTimeout after the end of Run's context;
// its message is delivered again.
func TestStopTimeout(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one", "two")
		entered := make(chan struct{})
		c := run(t, db, "orders", Options{Group: "g", From: "beginning", MaxAttempts: 1, StopTimeout: 50 * time.Millisecond},
			Each(func(ctx context.Context, m Message) error {
				if m.ID == 2 {
					close(entered)
					<-ctx.Done()
				}
				return ctx.Err()
			}))
		<-entered
		start := time.Now()
		require.NoError(t, c.end(t))
		require.GreaterOrEqual(t, time.Since(start), 50*time.Millisecond)
		require.Less(t, time.Since(start), 25*time.Second)
		require.Equal(t, uint64(1), stored(t, db, "g"))
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"), "a handler that was cut off is no verdict")
	})
}

// ErrStop, alone or wrapped, ends Run after the current messages, which count as handled.
func TestErrStop(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		do(t, db, "CREATE TABLE work (id BIGINT UNSIGNED NOT NULL)")
		insert(t, db, "orders", numbers(1, 5)...)
		stop := func(m Message) error {
			switch m.ID {
			case 2:
				return ErrStop
			case 4:
				return fmt.Errorf("four: %w", ErrStop)
			}
			return nil
		}
		handlers := map[string]Handler{
			"each": Each(func(_ context.Context, m Message) error { return stop(m) }),
			"tx": EachTx(func(ctx context.Context, tx *sqlx.Tx, m Message) error {
				if _, err := tx.ExecContext(ctx, "INSERT INTO work VALUES (?)", m.ID); err != nil {
					return err
				}
				return stop(m)
			}),
			"batch": Batch(func(_ context.Context, messages []Message) error { return stop(messages[len(messages)-1]) }),
		}
		for name, handler := range handlers {
			for _, want := range []uint64{2, 4} {
				require.NoError(t, run(t, db, "orders", Options{Group: name, From: "beginning", PageRows: 2}, handler).wait(t), name)
				require.Equal(t, want, stored(t, db, name), name)
			}
		}
		require.Equal(t, []int{1, 2, 3, 4}, mysqltest.Values[int](t, db.Pool(), "SELECT id FROM work ORDER BY id"))
	})
}

// StopAtEnd reads the existing rows and returns, even if there are none or a
// transaction is open; its rows are delivered in the group's next run.
func TestStopAtEnd(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		options := Options{Group: "g", From: "beginning", StopAtEnd: true}
		consume := func() []string {
			var got collected
			require.NoError(t, run(t, db, "orders", options, got.handler()).wait(t))
			return got.payloads()
		}
		require.Empty(t, consume())
		conn := newConn(t, db)
		onConn(t, conn, "START TRANSACTION", "INSERT INTO orders (payload) VALUES ('late')")
		insert(t, db, "orders", numbers(2, 400)...)
		require.Equal(t, numbers(2, 400), consume())
		require.Empty(t, consume())
		onConn(t, conn, "COMMIT")
		require.Equal(t, []string{"late"}, consume())
		require.Equal(t, uint64(400), stored(t, db, "g"))
	})
}

// With a negative FlushInterval the offset is stored before the next message begins;
// with a long one, only at the end. A handler in a transaction always stores it.
func TestFlushInterval(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 5)...)
		for name, c := range map[string]struct {
			interval time.Duration
			behind   func(id uint64) uint64 // what is stored when the message is begun
		}{
			"each message": {-1, func(id uint64) uint64 { return id - 1 }},
			"at the end":   {time.Hour, func(uint64) uint64 { return 0 }},
		} {
			options := Options{Group: name, From: "beginning", StopAtEnd: true, FlushInterval: c.interval}
			handler := Each(func(_ context.Context, m Message) error {
				if at := stored(t, db, name); at != c.behind(m.ID) {
					return fmt.Errorf("%d is stored at message %d", at, m.ID)
				}
				return nil
			})
			options.MaxAttempts = 1
			require.NoError(t, run(t, db, "orders", options, handler).wait(t))
			require.Equal(t, uint64(5), stored(t, db, name))
			require.Empty(t, mysqltest.Values[string](t, db.Pool(), "SELECT error FROM mqnotify_dead_letter"), name)
		}
		options := Options{Group: "tx", From: "beginning", StopAtEnd: true, FlushInterval: time.Hour, MaxAttempts: 1}
		require.NoError(t, run(t, db, "orders", options, EachTx(func(_ context.Context, _ *sqlx.Tx, m Message) error {
			if at := stored(t, db, "tx"); at != m.ID-1 {
				return fmt.Errorf("%d is stored at message %d", at, m.ID)
			}
			return nil
		})).wait(t))
		require.Empty(t, mysqltest.Values[string](t, db.Pool(), "SELECT error FROM mqnotify_dead_letter"))

		// The end of the interval counts even if nothing else happens.
		var got collected
		c := run(t, db, "orders", Options{Group: "idle", From: "beginning", FlushInterval: 50 * time.Millisecond}, got.handler())
		eventually(t, func() bool {
			return mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_offset WHERE group_name = 'idle' AND settled = 5") == 1
		}, "the offset is not stored while nothing comes")
		require.NoError(t, c.end(t))
	})
}

// An offset that can't be stored at the end is an error, because the handled messages
// will be delivered again.
func TestStopUnsaved(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, how := range []string{"context", "ErrStop", "StopAtEnd"} {
			db := openTopic(t, s)
			insert(t, db, "orders", "one")
			entered := make(chan struct{})
			release := make(chan struct{})
			c := run(t, db, "orders", Options{Group: "g", From: "beginning", FlushInterval: time.Hour, StopAtEnd: how == "StopAtEnd"},
				Each(func(context.Context, Message) error {
					close(entered)
					<-release
					if how == "ErrStop" {
						return ErrStop
					}
					return nil
				}))
			<-entered
			do(t, db, "RENAME TABLE mqnotify_offset TO gone")
			if how == "context" {
				c.stop()
			}
			close(release)
			err := c.wait(t)
			require.ErrorIs(t, err, errUnsaved, how)
			require.ErrorIs(t, err, notify.ErrNoState, how)
		}
	})
}

// Run returns nil whatever the cause of its context's end is, and wherever Run is.
func TestStopWithACause(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		ctx, cancel := context.WithCancelCause(context.WithoutCancel(t.Context()))
		defer cancel(nil)
		consumer := func(group string) chan error {
			c, err := New(db, "orders", Options{Group: group, Logger: testLogger(t)})
			require.NoError(t, err)
			done := make(chan error, 1)
			var got collected
			go func() { done <- c.Run(ctx, got.handler()) }()
			return done
		}
		active := consumer("g")
		eventually(t, func() bool { return lockHolder(t, db, "g") != 0 }, "nobody takes the lock")
		standby, alone := consumer("g"), consumer("")
		standingBy(t, db, 1)
		cancel(errors.New("interrupt signal received")) // as signal.NotifyContext says it
		for name, done := range map[string]chan error{"active": active, "standby": standby, "alone": alone} {
			select {
			case err := <-done:
				require.NoError(t, err, name)
			case <-time.After(patience):
				t.Fatal(name, "does not end")
			}
		}
		c, err := New(db, "orders", Options{Group: "g", Logger: testLogger(t)})
		require.NoError(t, err)
		require.NoError(t, c.Run(ctx, new(collected).handler()), "an end before the start")
	})
}
