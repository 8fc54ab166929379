package serve

import (
	"bytes"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// ends counts the ends of chunked bodies that its connections have written, with and without a deadline.
type ends struct {
	net.Listener
	mu               sync.Mutex
	bounded, forever int
}

func (e *ends) Accept() (net.Conn, error) {
	conn, err := e.Listener.Accept()
	return &endsConn{Conn: conn, ends: e}, err
}

func (e *ends) counted() (bounded, forever int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.bounded, e.forever
}

type endsConn struct {
	net.Conn
	ends    *ends
	limited bool // a deadline is set
}

func (c *endsConn) SetWriteDeadline(at time.Time) error {
	c.ends.mu.Lock()
	defer c.ends.mu.Unlock()
	c.limited = !at.IsZero()
	return c.Conn.SetWriteDeadline(at)
}

func (c *endsConn) Write(p []byte) (int, error) {
	c.ends.mu.Lock()
	if bytes.HasSuffix(p, []byte("0\r\n\r\n")) {
		if c.limited {
			c.ends.bounded++
		} else {
			c.ends.forever++
		}
	}
	c.ends.mu.Unlock()
	return c.Conn.Write(p)
}

// The end of a poll's body is written with a deadline, so that a client that stopped reading does not hold its connection.
func TestPollEndsWithDeadline(t *testing.T) {
	mysqltest.Each(t, func(t *testing.T, s *mysqltest.Server) {
		db := openDB(t, s.Database(t), "orders")
		insert(t, db, "orders", "a")
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		counts := &ends{Listener: listener}
		site := startOn(t, db, Options{Topics: []string{"orders"}}, counts)
		status, answer := site.ask(t, http.MethodGet, "/topics/orders/messages?after=beginning", "")
		require.Equal(t, http.StatusOK, status, answer)
		bounded, forever := counts.counted()
		assert.Equal(t, 1, bounded)
		assert.Zero(t, forever)
	})
}
