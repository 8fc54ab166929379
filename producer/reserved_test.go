package producer

import (
	"context"
	"testing"

	"github.com/jmoiron/sqlx"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// No way of publishing lets a program set the headers that determine which groups get a message.
func TestReservedHeaders(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, err := notify.OpenConfig(s.Database(t))
		require.NoError(t, err)
		defer db.Close()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "orders"))
		p, err := New(db, "orders", Options{})
		require.NoError(t, err)
		defer p.Close()
		for _, name := range []string{"mqnotify-retry", "Mqnotify-Retry", "MQNOTIFY-anything"} {
			m := Message{Headers: map[string]string{name: "other/1"}, Payload: []byte("x")}
			_, err := p.Publish(t.Context(), m)
			require.ErrorIs(t, err, notify.ErrOptions)
			require.ErrorContains(t, err, name)
			require.True(t, SafeToRetry(err))
			require.ErrorIs(t, p.Transact(t.Context(), func(ctx context.Context, tx *sqlx.Tx) error {
				_, err := p.PublishTx(ctx, tx, m)
				return err
			}), notify.ErrOptions)
		}
		var n int
		require.NoError(t, db.Pool().GetContext(t.Context(), &n, "SELECT COUNT(*) FROM orders"))
		require.Zero(t, n)
	})
}
