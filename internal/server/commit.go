package server

import (
	"context"
	"database/sql/driver"
	"fmt"
	"time"
)

// commitPatience is how long a COMMIT may still take when the context of its transaction has ended. It is usually enough to learn
// whether the rows are stored.
const commitPatience = 5 * time.Second

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

// boundedConn is a connection whose COMMITs end soon after the context of their transaction. Those of the driver have no context: they
// wait for as long as TCP does, a quarter of an hour, if the server's host is gone.
type boundedConn struct{ connection }

func (c boundedConn) BeginTx(ctx context.Context, options driver.TxOptions) (driver.Tx, error) {
	tx, err := c.connection.BeginTx(ctx, options)
	if err != nil {
		return nil, err
	}
	return boundedTx{tx, func() error {
		longer, release := Linger(ctx, commitPatience)
		defer release()
		_, err := c.ExecContext(longer, "COMMIT", nil)
		if err != nil && longer.Err() != nil {
			_ = c.Close() // perhaps nothing was sent, and the pool must not keep a connection with an open transaction
			err = fmt.Errorf("%w: %w", context.Cause(longer), err)
		}
		return err
	}}, nil
}

type boundedTx struct {
	driver.Tx
	commit func() error
}

func (t boundedTx) Commit() error { return t.commit() }
