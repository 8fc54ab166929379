package engine

import (
	"context"
	"net"
	"sync"
)

// listener tracks the accepted connections, so that closeConns can close them and wait for them. The server does not track connections
// during the handshake.
type listener struct {
	net.Listener
	running sync.WaitGroup
	mu      sync.Mutex
	conns   map[net.Conn]struct{}
}

// listen listens on a free TCP port of the host.
func listen(ctx context.Context, host string) (*listener, error) {
	var config net.ListenConfig
	l, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	return &listener{Listener: l, conns: make(map[net.Conn]struct{})}, nil
}

func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.running.Add(1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns[conn] = struct{}{}
	return conn, nil
}

// ended must be called once for each accepted connection, when it is not served any more.
func (l *listener) ended(conn net.Conn) {
	l.mu.Lock()
	delete(l.conns, conn)
	l.mu.Unlock()
	l.running.Done()
}

// closeConns closes every connection and waits until all have ended. Accept must not be called afterwards.
func (l *listener) closeConns() {
	l.mu.Lock()
	for conn := range l.conns {
		_ = conn.Close() // it may be closed already
	}
	l.mu.Unlock()
	l.running.Wait()
}
