package server

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/go-sql-driver/mysql"
)

const (
	// endPatience is how long a COMMIT or ROLLBACK may still take when its context has ended. It is usually enough to learn whether the
	// rows are stored.
	endPatience = 5 * time.Second
	// A connection that was idle for idleTrust is pinged before its next use. It is replaced if it does not answer within pingLimit,
	// because a network may have dropped it without a sign.
	idleTrust, pingLimit = 5 * time.Second, 5 * time.Second
)

// rollbackLimit is when the context of a ROLLBACK ends, if that of its transaction has not. A large transaction may take that long. A
// server that is cut off rolls back by itself. Tests make it shorter.
var rollbackLimit = 2 * time.Minute

var errNoRollback = fmt.Errorf("the server did not answer a ROLLBACK in time: %w", mysql.ErrInvalidConn)

// connection has the interfaces of the driver's connections that database/sql uses.
type connection interface {
	driver.Conn
	driver.ConnBeginTx
	driver.ConnPrepareContext
	driver.ExecerContext
	driver.QueryerContext
	driver.Pinger
	driver.NamedValueChecker
	driver.SessionResetter
	driver.Validator
}

// boundedConn is a connection whose COMMITs and ROLLBACKs end soon after the context of their transaction, and ROLLBACKs after a time.
// Those of the driver have no context: they wait for as long as TCP does, a quarter of an hour, if the server's host is gone.
type boundedConn struct {
	connection
	returned time.Time // to the pool
}

// IsValid is called when the connection returns to the pool, and by those that use it outside.
func (c *boundedConn) IsValid() bool {
	c.returned = time.Now()
	return c.connection.IsValid()
}

// ResetSession is called before the pool uses the connection again.
func (c *boundedConn) ResetSession(ctx context.Context) error {
	if err := c.connection.ResetSession(ctx); err != nil || time.Since(c.returned) < idleTrust {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, pingLimit)
	defer cancel()
	if c.Ping(ctx) != nil {
		return driver.ErrBadConn
	}
	return nil
}

func (c *boundedConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	if _, err := c.connection.BeginTx(ctx, options); err != nil {
		return nil, err
	}
	return boundedTx{
		commit: func() error { return c.end(ctx, "COMMIT") },
		rollback: func() error {
			limited, cancel := context.WithTimeoutCause(ctx, rollbackLimit, errNoRollback)
			defer cancel()
			return c.end(limited, "ROLLBACK")
		},
	}, nil
}

// end runs the statement that ends a transaction, until a time after ctx has ended.
func (c *boundedConn) end(ctx context.Context, statement string) error {
	longer, release := Linger(ctx, endPatience)
	defer release()
	_, err := c.ExecContext(longer, statement, nil)
	if err != nil && longer.Err() != nil {
		_ = c.Close() // perhaps nothing was sent, and the pool must not keep a connection with an open transaction
		err = fmt.Errorf("%w: %w", context.Cause(longer), err)
	}
	return err
}

type boundedTx struct{ commit, rollback func() error }

func (t boundedTx) Commit() error   { return t.commit() }
func (t boundedTx) Rollback() error { return t.rollback() }

// IsPool reports whether tx, which should be a transaction, is a pool, which commits each statement by itself.
func IsPool(tx any) bool {
	_, pool := tx.(interface{ SetMaxOpenConns(n int) })
	return pool
}
