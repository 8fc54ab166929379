package producer

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/internal/schema"
	"github.com/mqnotify/mqnotify/notify"
)

// Payloads that need a backslash before every byte fit up to the server's own
// limit, and larger ones are refused before they are sent.
func TestLargeMessages(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := topicOn(t, s, "x")
		p := newProducer(t, db, "x", Options{})
		_, err := p.Publish(t.Context(), Message{})
		require.NoError(t, err)
		packet := p.caps.Load().MaxAllowedPacket
		headers := map[string]string{"a": "b"}
		largest := packet - around - len(`{"a":"b"}`) - 1
		for _, size := range mysqltest.Many([]int{largest}, []int{packet / 4, packet / 2, largest}, []int{packet / 4, packet / 2, largest}) {
			payload := bytes.Repeat([]byte{'\'', 0}, size/2+1)[:size]
			ids, err := p.Publish(t.Context(), Message{Payload: payload, Headers: headers})
			require.NoError(t, err, "%d bytes", size)
			var got []byte
			require.NoError(t, db.Pool().GetContext(t.Context(), &got, "SELECT payload FROM x WHERE id = ?", ids[0]))
			require.True(t, bytes.Equal(payload, got), "%d bytes", size)
		}

		before := count(t, db, "x")
		for _, size := range []int{packet, 64 << 20} {
			_, err = p.Publish(t.Context(), Message{}, Message{Payload: make([]byte, size)})
			var tooLarge *notify.TooLargeError
			require.ErrorAs(t, err, &tooLarge)
			assert.Equal(t, notify.TooLargeError{What: "message", Index: 1, Size: size + around, Limit: packet}, *tooLarge)
			assert.ErrorContains(t, err, "max_allowed_packet")
			assert.True(t, SafeToRetry(err))
		}
		assert.Equal(t, before, count(t, db, "x"))
	})
}

// If a server or a driver accepts only small packets, it gets no larger ones.
func TestSmallPackets(t *testing.T) {
	messages := make([]Message, 200)
	for i := range messages {
		messages[i].Payload = bytes.Repeat([]byte{'"', byte(i)}, 10*i)
	}
	check := func(t *testing.T, db *notify.DB, messages []Message) {
		t.Helper()
		require.NoError(t, schema.Init(t.Context(), db.Pool(), "x"))
		ids, err := newProducer(t, db, "x", Options{}).Publish(t.Context(), messages...)
		require.NoError(t, err)
		got := stored(t, db, "x")
		for i, id := range ids {
			require.True(t, bytes.Equal(messages[i].Payload, got[id].Payload), "message %d", i)
		}
	}
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		t.Run("server", func(t *testing.T) {
			own := s.Start(t, "--max-allowed-packet=16K", "--net-buffer-length=16K")
			check(t, open(t, own.Database(t)), messages)
		})
		t.Run("driver", func(t *testing.T) {
			for _, packet := range []int{1 << 10, 16 << 10, 0} {
				config := s.Database(t)
				config.MaxAllowedPacket = packet
				check(t, open(t, config), append(messages[:200:200], Message{Payload: make([]byte, 1<<20)}))
				check(t, open(t, config), make([]Message, 1000))
			}
		})
	})
}
