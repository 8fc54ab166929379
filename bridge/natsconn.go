package bridge

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// natsConn is a connection to the server.
type natsConn struct {
	conn *nats.Conn
	js   jetstream.JetStream
	gone <-chan struct{} // closed when the connection has ended; no answer arrives after that
	wire *wire
}

// withTimeout is context.WithTimeout. The context also ends when the connection is lost, because the client does not end a wait then.
func (c *natsConn) withTimeout(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, d)
	go func() {
		select {
		case <-c.gone:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// wire is a connection's socket. While the client writes to a server that does not read, it holds a lock for which its Close waits. Only
// closing the socket ends this.
type wire struct {
	dial func(network, addr string) (net.Conn, error)
	mu   sync.Mutex
	conn net.Conn
}

// Dial is called by the client to connect.
func (w *wire) Dial(network, addr string) (net.Conn, error) {
	conn, err := w.dial(network, addr)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.conn = conn
	return conn, err
}

func (w *wire) cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.conn != nil {
		_ = w.conn.Close()
	}
}

// connect makes a connection that does not reconnect by itself. The shell reconnects, because it knows which messages are unconfirmed.
func (d *natsDestination) connect(ctx context.Context) (*natsConn, error) {
	gone := make(chan struct{})
	dialer := &net.Dialer{Timeout: nats.DefaultTimeout}
	w := &wire{dial: func(network, addr string) (net.Conn, error) { return dialer.DialContext(ctx, network, addr) }}
	options := append([]nats.Option{
		nats.Name("mqnotify"), nats.NoReconnect(), nats.ClosedHandler(func(*nats.Conn) { close(gone) }), nats.SetCustomDialer(w),
	}, d.options...)
	if deadline, has := ctx.Deadline(); has {
		dialer.Timeout = max(time.Until(deadline), time.Millisecond)
		options = append(options, nats.Timeout(dialer.Timeout))
	}
	defer context.AfterFunc(ctx, w.cut)()
	conn, err := nats.Connect(d.servers, options...)
	if err != nil {
		if errors.Is(err, nats.ErrAuthorization) || errors.Is(err, nats.ErrAuthExpired) || errors.Is(err, nats.ErrAuthRevoked) {
			return nil, permanent(fmt.Errorf("the credentials are refused: %w", err))
		}
		if errors.Is(err, nats.ErrSecureConnWanted) {
			return nil, permanent(fmt.Errorf("the server has no TLS on this port: %w", err))
		}
		return nil, fmt.Errorf("connect: %w", err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &natsConn{conn, js, gone, w}, nil
}
