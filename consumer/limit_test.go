package consumer

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// A limit counts every message, also one that becomes a dead letter, and no further message is touched.
func TestLimit(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openConfig(t, s.Database(t), "orders")
		insert(t, db, "orders", "1", "2", "3", "4", "5", "6", "7", "8", "9")
		consume := func(limit, attempts int, handler Handler) {
			t.Helper()
			c, err := New(db, "orders", Options{Group: "g", From: "beginning", Limit: limit, MaxAttempts: attempts, Logger: testLogger(t)})
			require.NoError(t, err)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			require.NoError(t, c.Run(ctx, handler))
			require.NoError(t, ctx.Err(), "it ends by its limit")
		}
		var got []string
		each := func(_ context.Context, m Message) error {
			if string(m.Payload) == "2" {
				return errors.New("broken")
			}
			got = append(got, string(m.Payload))
			return nil
		}
		consume(1, 5, Each(each))
		require.Equal(t, []string{"1"}, got)
		consume(1, 1, Each(each)) // a dead letter
		require.Equal(t, []string{"1"}, got)
		require.Equal(t, 1, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
		consume(2, 1, Each(each))
		require.Equal(t, []string{"1", "3", "4"}, got)
		pages := 0
		consume(3, 1, Batch(func(_ context.Context, messages []Message) error {
			pages++
			for _, m := range messages {
				got = append(got, string(m.Payload))
			}
			return nil
		}))
		require.Equal(t, "1 3 4 5 6 7", strings.Join(got, " "))
		require.Equal(t, 1, pages)
		_, err := New(db, "orders", Options{Limit: -1})
		require.ErrorIs(t, err, notify.ErrOptions)
	})
}

// If what the handler needs is unavailable, the topic does not become dead letters at full speed.
func TestDeadLettersInARowPause(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openConfig(t, s.Database(t), "orders")
		insert(t, db, "orders", "1", "2", "3", "4", "good", "5", "dead", "dead")
		log := new(strings.Builder)
		consumer, err := New(db, "orders", Options{
			Group: "g", From: "beginning", StopAtEnd: true, MaxAttempts: 1,
			Retry:  func() backoff.BackOff { return backoff.NewConstantBackOff(time.Millisecond) },
			Logger: slog.New(slog.NewTextHandler(log, nil)),
		})
		require.NoError(t, err)
		require.NoError(t, consumer.Run(t.Context(), Each(func(_ context.Context, m Message) error {
			switch string(m.Payload) {
			case "good":
				return nil
			case "dead":
				return notify.ErrDead
			}
			return errors.New("broken")
		})))
		// It waits before the third, the fourth and the good message.
		require.Equal(t, 3, strings.Count(log.String(), "messages in a row became dead letters"), log.String())
		require.Equal(t, 7, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_dead_letter"))
	})
}
