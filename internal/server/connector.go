package server

import (
	"context"
	"database/sql/driver"
	"errors"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"
)

// NewConnector is mysql.NewConnector with other errors: they do not advise to send passwords in an unsafe way, as the
// driver's do. An error that is caused by the deadline of a context is returned after the context has ended.
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
	// The network's timer may notice the deadline before ctx does, and the caller checks ctx to interpret the error.
	if deadline, ok := ctx.Deadline(); err != nil && ok && !time.Now().Before(deadline) {
		<-ctx.Done()
	}
	switch {
	case errors.Is(err, mysql.ErrCleartextPassword):
		return nil, &authenticationError{"the server asks for the password in clear text (mysql_clear_password), and mqnotify does not send it: " +
			"is this the right server? Its accounts can use caching_sha2_password or ed25519 instead", err}
	case errors.Is(err, mysql.ErrOldPassword):
		return nil, &authenticationError{"the account's password has the format of MySQL 4.0, which can be read on the network: set the password again", err}
	}
	if c, is := conn.(connection); is {
		return &boundedConn{connection: c}, err
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

// Dialer returns the function with which the driver dials for a configuration. It returns nil for a network that is registered with
// the driver, because its connections can't be watched.
func Dialer(config *mysql.Config) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if config.DialFunc != nil {
		return config.DialFunc
	}
	switch config.Net {
	case "", "tcp", "unix": // the driver takes an empty name as TCP
		return new(net.Dialer).DialContext
	}
	return nil
}

// Sound reports whether the driver still trusts the connection.
func Sound(conn interface{ Raw(f func(any) error) error }) bool {
	valid := false
	err := conn.Raw(func(conn any) error {
		v, ok := conn.(driver.Validator)
		valid = !ok || v.IsValid()
		return nil
	})
	return err == nil && valid
}
