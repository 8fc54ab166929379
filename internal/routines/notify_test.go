package routines_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// notification is a row that mqnotify_listen returns.
type notification struct {
	ID      uint64
	Payload string
}

func (s session) listen(ctx context.Context, name string, after, seconds any) (n notification, err error) {
	var at any
	var payload sql.NullString
	err = s.QueryRowContext(ctx, "CALL mqnotify_listen(?, ?, ?)", name, after, seconds).Scan(&n.ID, &payload, &at)
	if n.Payload = payload.String; !payload.Valid {
		n.Payload = "none"
	}
	return n, err
}

// mqnotify_listen returns notifications in the order of their ids. A notification whose transaction is open holds up the later
// ones of its name, and none of other names.
func TestListen(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		for _, autocommit := range []string{"1", "0"} {
			_, db := database(t, s)
			mysqltest.Exec(t, db.Pool(), "CALL mqnotify_notify('reload', 'before')")
			caller := connect(t, db, "SET autocommit = "+autocommit)
			n, err := caller.listen(t.Context(), "reload", nil, 0)
			require.NoError(t, err)
			require.Equal(t, notification{1, "none"}, n, "the wait has timed out")
			n, err = caller.listen(t.Context(), "reload", 7, 0.1)
			require.NoError(t, err)
			require.Equal(t, notification{7, "none"}, n)
			n, err = caller.listen(t.Context(), "reload", 0, 0)
			require.NoError(t, err)
			require.Equal(t, notification{1, "before"}, n)

			got := mysqltest.Result(func() any {
				n, err := caller.listen(t.Context(), "reload", 1, 60)
				return errors.Join(err, check(n, notification{3, "late"}))
			})
			other := connect(t, db, "START TRANSACTION", "CALL mqnotify_notify('other', '')")
			late := connect(t, db, "START TRANSACTION", "CALL mqnotify_notify('reload', 'late')")
			mysqltest.Exec(t, db.Pool(), "CALL mqnotify_notify('reload', 'v42')")
			mysqltest.Window(t, 300*time.Millisecond)
			require.Empty(t, got, "the earlier notification is not committed")
			mysqltest.Exec(t, late, "COMMIT")
			require.Nil(t, mysqltest.Receive(t, got))
			n, err = caller.listen(t.Context(), "reload", 3, 0)
			require.NoError(t, err)
			require.Equal(t, notification{4, "v42"}, n)
			mysqltest.Exec(t, other, "ROLLBACK")
		}
	})
}

func check(got, want notification) error {
	if got != want {
		return fmt.Errorf("got %v, want %v", got, want)
	}
	return nil
}

// A notification of mqnotify_notify wakes a listener in Go, and one sent by Go wakes mqnotify_listen.
func TestNotify(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config, db := database(t, s)
		far := open(t, config)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		inGo, err := notify.Listen(ctx, far, "reload")
		require.NoError(t, err)
		caller := connect(t, db)
		inSQL := mysqltest.Result(func() any {
			n, err := caller.listen(t.Context(), "reload", 0, 60)
			return errors.Join(err, check(n, notification{1, "v1"}))
		})
		mysqltest.Exec(t, db.Pool(), "CALL mqnotify_notify('reload', 'v1')")
		require.Equal(t, "v1", string(mysqltest.Receive(t, inGo).Payload))
		require.Nil(t, mysqltest.Receive(t, inSQL))
		require.NoError(t, notify.Notify(t.Context(), db, "reload", "v2"))
		n, err := caller.listen(t.Context(), "reload", 1, 60)
		require.NoError(t, err)
		require.Equal(t, notification{2, "v2"}, n)
	})
}

// A message of mqnotify_publish belongs to the caller's transaction, and a consumer in Go reads it.
func TestPublish(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		_, db := database(t, s, "orders")
		caller := connect(t, db, "START TRANSACTION", "CALL mqnotify_publish('orders', NULL, 'undone')", "ROLLBACK",
			"START TRANSACTION", `CALL mqnotify_publish('orders', '{"kind":"new"}', 'done')`)
		require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM orders"))
		mysqltest.Exec(t, caller, "COMMIT")
		c, err := consumer.New(db, "orders", consumer.Options{From: "beginning", Logger: mysqltest.Logger(t, slog.LevelWarn)})
		require.NoError(t, err)
		got := make(chan consumer.Message, 1)
		ctx, cancel := context.WithCancel(t.Context())
		ended := mysqltest.Result(func() error {
			return c.Run(ctx, consumer.Each(func(_ context.Context, m consumer.Message) error { got <- m; return nil }))
		})
		m := mysqltest.Receive(t, got)
		require.Equal(t, "done", string(m.Payload))
		require.Equal(t, map[string]string{"kind": "new"}, m.Headers)
		cancel()
		require.NoError(t, mysqltest.Receive(t, ended))
	})
}
