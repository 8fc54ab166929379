package consumer

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/deadletter"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// If a part of a page was handled, only the rest is tried again, and the count of attempts
// restarts with every step ahead.
func TestHandled(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", numbers(1, 20)...)
		var done []uint64
		handler := Batch(func(_ context.Context, messages []Message) error {
			for i, m := range messages {
				if i == 3 {
					return Handled(i, errHandler)
				}
				done = append(done, m.ID)
			}
			return nil
		})
		options := Options{Group: "g", From: "beginning", StopAtEnd: true, MaxAttempts: 2, Retry: atOnce}
		require.NoError(t, run(t, db, "orders", options, handler).wait(t))
		want := make([]uint64, 20)
		for i := range want {
			want[i] = uint64(i + 1)
		}
		require.Equal(t, want, done)
		require.Empty(t, deadLetters(t, db, letters))

		// A handler that stops there stores its progress.
		insert(t, db, "orders", numbers(21, 30)...)
		ctx, stop := context.WithCancel(t.Context())
		c, err := New(db, "orders", options)
		require.NoError(t, err)
		require.NoError(t, c.Run(ctx, Batch(func(context.Context, []Message) error {
			stop()
			return Handled(4, errHandler)
		})))
		require.Equal(t, uint64(24), stored(t, db, "g"))
		// One that ends Run there too: the next Run goes on with the rest.
		stopping := Batch(func(context.Context, []Message) error { return Handled(2, ErrStop) })
		require.NoError(t, run(t, db, "orders", options, stopping).wait(t))
		require.Equal(t, uint64(26), stored(t, db, "g"))
		stopping = Batch(func(context.Context, []Message) error { return Handled(0, ErrStop) })
		require.NoError(t, run(t, db, "orders", options, stopping).wait(t))
		require.Equal(t, uint64(26), stored(t, db, "g"))
		require.NoError(t, Handled(7, nil))
		for _, none := range []Handler{{}, Each(nil), Batch(nil), EachTx(nil), BatchTx(nil)} {
			require.ErrorIs(t, c.Run(t.Context(), none), notify.ErrOptions)
		}
	})
}

// For a handler of single messages Handled means its error: the message counts as failed.
func TestHandledOfEach(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		insert(t, db, "orders", "one")
		handler := Each(func(context.Context, Message) error { return Handled(1, errHandler) })
		require.NoError(t, run(t, db, "orders", Options{Group: "g", From: "beginning", StopAtEnd: true, MaxAttempts: 1}, handler).wait(t))
		require.Len(t, deadLetters(t, db, letters), 1)
	})
}

// A dead letter that is written twice is one row.
func TestLetterOnce(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		for attempts := range 2 {
			require.NoError(t, deadletter.Write(t.Context(), db.Pool(), deadletter.Letter{
				Topic: "orders", Group: "g", ID: 7, Payload: []byte("x"), Attempts: attempts + 1, Cause: errHandler,
			}))
		}
		require.Equal(t, []letter{{Topic: "orders", Group: "g", ID: 7, Payload: []byte("x"), Attempts: 2, Error: errHandler.Error()}},
			deadLetters(t, db, letters))
	})
}
