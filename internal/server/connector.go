package server

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"
)

// NewConnector is mysql.NewConnector, whose errors do not advise to send passwords in an unsafe way, as the
// driver's own do, and come after the end of their context where that is their reason.
func NewConnector(config *mysql.Config) (driver.Connector, error) {
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	return safeConnector{connector}, nil
}

type safeConnector struct{ driver.Connector }

func (c safeConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	// The network's timer may be the first to know of the deadline, and the caller asks ctx what the error means.
	if deadline, ok := ctx.Deadline(); err != nil && ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	switch {
	case errors.Is(err, mysql.ErrCleartextPassword):
		return nil, &authenticationError{"the server asks for the password in clear text (mysql_clear_password), and does not get it: " +
			"is it the server that you mean? Its accounts can use caching_sha2_password or ed25519 instead", err}
	case errors.Is(err, mysql.ErrOldPassword):
		return nil, &authenticationError{"the account has a password of MySQL 4.0, which anybody can read on the way: have it set again", err}
	}
	return conn, err
}

// authenticationError replaces the driver's text.
type authenticationError struct {
	text string
	err  error
}

func (e *authenticationError) Error() string { return e.text }
func (e *authenticationError) Unwrap() error { return e.err }

// Dialer is what the driver dials with for a configuration. It is nil for a network that is registered with the driver, whose
// connections can't be watched.
func Dialer(config *mysql.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if config.DialFunc != nil {
		return config.DialFunc
	}
	switch config.Net {
	case "", "tcp", "unix": // the empty name is TCP to the driver
		return new(net.Dialer).DialContext
	}
	return nil
}
