package queue

import (
	"bytes"
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
	"github.com/mqnotify/mqnotify/notify"
)

// lostAt is a connection that ends when it has sent a certain text.
type lostAt struct {
	net.Conn
	text string
}

func (e lostAt) Write(b []byte) (int, error) {
	n, err := e.Conn.Write(b)
	if bytes.Contains(b, []byte(e.text)) {
		_ = e.Close()
	}
	return n, err
}

// If the connection is lost before the INSERT, or while that of a large task is prepared, it is not unknown whether the tasks are stored.
func TestLostBeforeTheInsert(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db, config := database(t, s)
		large := Entry{Payload: make([]byte, mysqltest.Value[int](t, db.Pool(), "SELECT @@max_allowed_packet")*3/4)}
		for text, entries := range map[string][]Entry{"SELECT @@auto_increment_increment": {{}, {}}, insertInto: {large}} {
			far := config.Clone()
			far.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return lostAt{conn, text}, err
			}
			_, err := newQueue(t, openConfig(t, far), Options{}).Enqueue(t.Context(), entries...)
			require.Error(t, err)
			require.NotErrorIs(t, err, notify.ErrUnknown)
			require.Zero(t, mysqltest.Value[int](t, db.Pool(), "SELECT COUNT(*) FROM mqnotify_task"))
		}
	})
}
