package server_test

import (
	"context"
	"database/sql/driver"
	"net"
	"os"
	"testing"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/stretchr/testify/require"

	"github.com/mqnotify/mqnotify/internal/server"
)

// late is a context that ends shortly after its deadline, as may happen on a busy machine.
type late struct {
	context.Context //nolint:containedctx // it is one
	deadline        time.Time
}

func (l late) Deadline() (time.Time, bool) { return l.deadline, true }

// The error of a connection that is not made by the deadline comes after its context has ended.
func TestConnectAtTheDeadline(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	config := mysql.NewConfig()
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) { return nil, os.ErrDeadlineExceeded }
	connector, err := server.NewConnector(config)
	require.NoError(t, err)
	_, err = connector.Connect(late{ctx, time.Now()})
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Error(t, ctx.Err())
}

// authenticating is a connector of a server that asks for a password in an unsafe way.
type authenticating struct {
	driver.Connector
	err error
}

func (a authenticating) Connect(context.Context) (driver.Conn, error) { return nil, a.err }

// No error advises to send a password in an unsafe way. The driver's errors name the parameters that allow it.
func TestUnsafePasswords(t *testing.T) {
	for _, err := range []error{mysql.ErrCleartextPassword, mysql.ErrOldPassword} {
		require.Contains(t, err.Error(), "allow")
		_, safe := server.SafeConnector(authenticating{err: err}).Connect(t.Context())
		require.ErrorIs(t, safe, err)
		require.NotContains(t, safe.Error(), "allow")
		require.Contains(t, safe.Error(), "password")
	}
}

func TestNewConnectorRefuses(t *testing.T) {
	config := mysql.NewConfig()
	config.TLSConfig = "unknown"
	_, err := server.NewConnector(config)
	require.Error(t, err)
}

// The driver's own networks are dialled, and those that only the driver knows are not.
func TestDialer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	config := mysql.NewConfig()
	for _, network := range []string{"", "tcp", "unix"} {
		config.Net = network
		require.NotNil(t, server.Dialer(config), network)
	}
	conn, err := server.Dialer(config)(t.Context(), "tcp", listener.Addr().String())
	require.NoError(t, err)
	require.NoError(t, conn.Close())
	config.Net = "registered"
	require.Nil(t, server.Dialer(config))
	called := false
	config.DialFunc = func(context.Context, string, string) (net.Conn, error) {
		called = true
		return nil, os.ErrDeadlineExceeded
	}
	_, err = server.Dialer(config)(t.Context(), "registered", "")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.True(t, called)
}
