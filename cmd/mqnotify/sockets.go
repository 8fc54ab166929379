package main

import (
	"context"
	"net"
	"sync"
	"syscall"

	"github.com/mqnotify/mqnotify/internal/supervisor"
)

// dialer connects to a server.
type dialer func(ctx context.Context, network, addr string) (net.Conn, error)

// sockets has all connections that the process has made. The command's supervisor keeps them open. When mqnotify is killed, the
// server therefore holds an advisory lock until the command and all that it has started have ended.
type sockets struct {
	mu  sync.Mutex
	all []net.Conn
}

func (s *sockets) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, addr)
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.all = append(s.all, conn)
	}
	return conn, err
}

// keptBy makes the command's supervisor keep the connections open.
func (s *sockets) keptBy(cmd *supervisor.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, conn := range s.all {
		if conn, ok := conn.(syscall.Conn); ok {
			cmd.Keep(conn)
		}
	}
}
