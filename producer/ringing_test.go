package producer

import (
	"bytes"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// What a producer publishes that keeps the gate goes over the keeper's session, which
// rings in the same packet, but for what is long; and it is stored as over the pool.
func TestPublishRings(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		mysqltest.Exec(t, db.Pool(), "ALTER TABLE x ADD COLUMN session BIGINT")
		mysqltest.Exec(t, db.Pool(), "CREATE TRIGGER who BEFORE INSERT ON x FOR EACH ROW SET NEW.session = CONNECTION_ID()")
		p := newProducer(t, db, "x", Options{})
		require.NoError(t, p.Join(t.Context()))
		keeper := func() (id uint64) {
			require.NoError(t, db.Pool().Get(&id, "SELECT COALESCE(IS_USED_LOCK(?), 0)", "mqnotify:gate:"+db.Name()+":x:keeper"))
			return id
		}
		sessions := func(ids ...uint64) (sessions []uint64) {
			for _, id := range ids {
				var session uint64
				require.NoError(t, db.Pool().Get(&session, "SELECT session FROM x WHERE id = ?", id))
				sessions = append(sessions, session)
			}
			return slices.Compact(sessions)
		}
		messages := []Message{{Payload: []byte("a\x00'\\")}, {Headers: map[string]string{"k": "ü"}}, {Payload: []byte("c")}}
		var ids []uint64
		require.Eventually(t, func() bool {
			var err error
			ids, err = p.Publish(t.Context(), messages...)
			require.NoError(t, err)
			return slices.Equal([]uint64{keeper()}, sessions(ids...))
		}, 10*time.Second, 10*time.Millisecond)
		all := stored(t, db, "x")
		for i, m := range messages {
			m.Payload = append([]byte{}, m.Payload...)
			assert.Equal(t, m, all[ids[i]])
		}

		long, err := p.Publish(t.Context(), Message{Payload: bytes.Repeat([]byte("x"), short)})
		require.NoError(t, err)
		assert.NotEqual(t, []uint64{keeper()}, sessions(long...))

		mysqltest.Exec(t, db.Pool(), "DROP TABLE x")
		_, err = p.Publish(t.Context(), messages...)
		require.ErrorIs(t, err, ErrNoTopic)
	})
}
