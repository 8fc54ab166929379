package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/consumer"
	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
	"github.com/mqnotify/mqnotify/producer"
)

// An import does not try again if no retry can succeed: it ends with the server's error.
func TestImportEndsWhenRefused(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		db := setUp(t, config)
		message := given{{ID: "a", Message: producer.Message{Payload: []byte("longer than ten bytes")}}}
		from := &origin{Name: "x", Key: "x", Open: func(context.Context) (messageSource, error) { return message, nil }}

		in := " ON " + config.DBName + "."
		account := connect(t, s.User(t, config, "SELECT, INSERT"+in+"orders", "SELECT, DELETE"+in+"mqnotify_import", "SELECT"+in+"mqnotify_schema"))
		require.ErrorIs(t, runImport(t, account, from, ImportOptions{}).wait(t), notify.ErrDenied)

		mysqltest.ExecAll(t, db.Pool(), "ALTER TABLE orders ADD UNIQUE KEY payload (payload(100))", "INSERT INTO orders (payload) VALUES ('longer than ten bytes')")
		err := runImport(t, db, from, ImportOptions{}).wait(t)
		require.True(t, server.Is(err, server.ErrDuplicate), "%v", err)

		mysqltest.ExecAll(t, db.Pool(), "DELETE FROM orders", "ALTER TABLE orders DROP KEY payload, MODIFY payload VARBINARY(10) NOT NULL")
		err = runImport(t, db, from, ImportOptions{}).wait(t)
		require.True(t, server.Is(err, server.ErrDataTooLong), "%v", err)
		require.Empty(t, mysqltest.Values[string](t, db.Pool(), "SELECT message_id FROM mqnotify_import"))
	})
}

// An import on a server that takes no writes says so.
func TestImportReadOnly(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, shared *mysqltest.Server) {
		s := shared.Start(t)
		config := s.Database(t)
		setUp(t, config)
		account := connect(t, s.User(t, config, "ALL ON "+config.DBName+".*"))
		_, err := s.Admin(t).ExecContext(t.Context(), "SET GLOBAL read_only = ON")
		require.NoError(t, err)
		from := &origin{Name: "x", Key: "x", Open: func(context.Context) (messageSource, error) { return given{}, nil }}
		i, err := newImport(account, from, "orders", ImportOptions{})
		require.NoError(t, err)
		defer func() { require.NoError(t, i.producer.Close()) }() // Run closes it at its end
		require.ErrorIs(t, i.prune(t.Context()), notify.ErrReadOnly)
	})
}

// A bridge that may not write a dead letter ends, and does not send the refused message again and again.
func TestDeadLetterDenied(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		config := s.Database(t)
		insert(t, setUp(t, config), 1, 3)
		in := " ON " + config.DBName + "."
		account := connect(t, s.User(t, config, "SELECT, INSERT, UPDATE, DELETE"+in+"mqnotify_offset", "SELECT"+in+"orders", "SELECT"+in+"mqnotify_schema",
			"SELECT"+in+"mqnotify_partition", "SELECT, DELETE"+in+"mqnotify_retry", "SELECT, INSERT, UPDATE, DELETE"+in+"mqnotify_origin"))
		tries := 0
		f := &fake{fail: func(m consumer.Message) error {
			if m.ID != 2 {
				return nil
			}
			tries++
			return poison(m, "too large")
		}}
		options := toEnd
		options.MaxAttempts = 2
		require.ErrorIs(t, run(t, account, f.destination(), options).wait(t), notify.ErrDenied)
		require.Equal(t, 2, tries)
		require.Equal(t, []uint64{1}, f.ids())
	})
}

// The dead letter of a bridge that sends columns has the whole message, which a retry publishes.
func TestDeadLetterOfColumns(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openTopic(t, s)
		mysqltest.Exec(t, db.Pool(), `INSERT INTO orders (headers, payload) VALUES ('{"k": "v"}', 'whole')`)
		f := &fake{fail: func(m consumer.Message) error { return poison(m, "%s", m.Payload) }}
		options := toEnd
		options.MaxAttempts, options.Consumer.Group, options.Consumer.Columns = 1, "g", []string{"id"}
		require.NoError(t, run(t, db, f.destination(), options).wait(t))
		c, err := consumer.New(db, "orders", consumer.Options{Group: options.Consumer.Group})
		require.NoError(t, err)
		letters, err := c.DeadLetters(t.Context(), consumer.DeadFilter{Whole: true})
		require.NoError(t, err)
		require.Len(t, letters, 1)
		require.Equal(t, "whole", string(letters[0].Payload))
		require.Equal(t, map[string]string{"k": "v"}, letters[0].Headers)
		require.Contains(t, letters[0].Error, `{"id":1}`)
	})
}

// The end of the context is no failure of a bridge, even while the destination is opened.
func TestContextEndsWhileOpening(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		ctx, cancel := context.WithCancel(t.Context())
		to := &Destination{Name: "slow", InFlight: 1, Open: func(ctx context.Context) (Sink, error) {
			cancel()
			select {
			case <-ctx.Done():
			case <-time.After(patience):
			}
			return nil, context.Cause(ctx)
		}}
		b, err := New(openTopic(t, s), "orders", to, Options{Consumer: consumer.Options{Group: "g"}})
		require.NoError(t, err)
		require.NoError(t, b.Run(ctx))
	})
}
