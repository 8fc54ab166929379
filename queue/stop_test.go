package queue

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/mysqltest"
)

// endsAt ends a context after a number of writes to its connections.
type endsAt struct {
	left atomic.Int32
	end  context.CancelFunc
}

type endingConn struct {
	net.Conn
	at *endsAt
}

func (c endingConn) Write(b []byte) (int, error) {
	if c.at.left.Add(-1) == 0 {
		c.at.end()
	}
	return c.Conn.Write(b)
}

// A worker that stops while it connects returns nil, whichever of its first statements is interrupted.
func TestWorkerStopsAtAnyStatement(t *testing.T) {
	each(t, func(t *testing.T, s *mysqltest.Server) {
		_, config := database(t, s)
		for statement := range mysqltest.Size[int32](15, 25, 25) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second) // it may send fewer
			defer cancel()
			at := &endsAt{end: cancel}
			own := config.Clone()
			own.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
				conn, err := new(net.Dialer).DialContext(ctx, network, addr)
				return endingConn{conn, at}, err
			}
			w, err := newWorker(newQueue(t, openConfig(t, own), Options{}), WorkerOptions{})
			require.NoError(t, err)
			at.left.Store(statement + 1)
			require.NoError(t, w.run(ctx, func(context.Context, Task) error { return nil }), "statement %d", statement)
		}
	})
}
