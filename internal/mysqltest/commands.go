package mysqltest

import (
	"bytes"
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/go-sql-driver/mysql"
)

// Commands counts the statements that the connections of one configuration send. The counters of the server would include the
// statements of other tests.
type Commands struct {
	statements, prepared atomic.Uint64
}

// CountCommands counts the statements sent over connections that are opened with cfg from now on. It counts nothing on
// encrypted connections.
func CountCommands(cfg *mysql.Config) *Commands {
	c := &Commands{}
	dial := cfg.DialFunc
	if dial == nil {
		dial = (&net.Dialer{}).DialContext
	}
	cfg.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &commandConn{conn, c}, nil
	}
	return c
}

// Statements returns the number of statements, counted like the server's status variable Questions: every statement of a query
// that has several, but no pings.
func (c *Commands) Statements() uint64 { return c.statements.Load() }

// Prepared returns the number of executions of prepared statements.
func (c *Commands) Prepared() uint64 { return c.prepared.Load() }

func (c *Commands) count(command byte, text []byte) {
	switch command {
	case commandQuery:
		c.statements.Add(1 + uint64(bytes.Count(text, []byte("; "))))
	case commandExecute:
		c.statements.Add(1)
		c.prepared.Add(1)
	}
}

type commandConn struct {
	net.Conn
	commands *Commands
}

// Write counts the packets that begin a command: those with number 0. The driver writes each with one call.
func (c *commandConn) Write(p []byte) (int, error) {
	if len(p) > 4 && p[3] == 0 && int(p[0])|int(p[1])<<8|int(p[2])<<16 == len(p)-4 {
		c.commands.count(p[4], p[5:])
	}
	return c.Conn.Write(p)
}

// SyscallConn lets the driver and sessions of package notify see whether the connection has ended.
func (c *commandConn) SyscallConn() (syscall.RawConn, error) {
	if inner, ok := c.Conn.(syscall.Conn); ok {
		return inner.SyscallConn()
	}
	return nil, errors.New("mysqltest: the connection has no descriptor")
}
