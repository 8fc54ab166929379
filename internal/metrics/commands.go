package metrics

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// CountCommands makes the connections of a configuration count the statements, and the
// other commands of the protocol, that are sent over them; a packet of several statements
// counts once. It returns a function that returns the count. Call it before notify.OpenConfig.
func CountCommands(config *mysql.Config) func() uint64 {
	var count atomic.Uint64
	dial := config.DialFunc
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &countingConn{Conn: conn, count: &count}, nil
	}
	return count.Load
}

// countingConn counts packets with the number 0, which begin a command. The driver writes
// each in one piece. It can't count commands on an encrypted connection.
type countingConn struct {
	net.Conn
	count *atomic.Uint64
}

func (c *countingConn) Write(p []byte) (int, error) {
	if len(p) > 4 && p[3] == 0 && int(p[0])|int(p[1])<<8|int(p[2])<<16 == len(p)-4 {
		c.count.Add(1)
	}
	return c.Conn.Write(p)
}

// SyscallConn lets the driver, and sessions of package core, check whether the connection has ended.
func (c *countingConn) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := c.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	return nil, errors.New("the connection has no descriptor")
}
