// Package dberror translates errors of the server into the errors that callers check, with the remedy.
package dberror

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// Explain adds the error that callers check to the error of a statement on mqnotify's tables: notify.ErrNoState, notify.ErrDenied,
// notify.ErrReadOnly, or a *notify.TooLargeError. what is the thing that was stored; roles are roles of `mqnotify grants`. It returns
// other errors unchanged.
func Explain(err error, what, roles string) error {
	switch {
	case err == nil:
		return nil
	case server.Is(err, server.ErrNoSuchTable, server.ErrBadField):
		return fmt.Errorf("%w: %w", notify.ErrNoState, err)
	case server.NoPrivilege(err):
		return fmt.Errorf("%w: `mqnotify grants --role %s` shows what it needs: %w", notify.ErrDenied, roles, err)
	case server.ReadOnly(err):
		return fmt.Errorf("%w: connect to the primary: %w", notify.ErrReadOnly, err)
	case server.Is(err, server.ErrCheckRead):
		return fmt.Errorf("begin the transaction READ COMMITTED: a row has changed since its first read: %w", err)
	case server.Is(err, server.ErrPacketTooLarge), errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("%w: %w", &notify.TooLargeError{What: what}, err)
	}
	return err
}

// Unknown returns a notify.ErrUnknown if err leaves open whether a commit happened. An error of the server is an answer, because
// the server rolls back a statement that fails. Two errors of the driver mean that nothing was sent, and NotStored marks others.
func Unknown(err error) error {
	if err == nil || server.Number(err) != 0 && !server.Relayed(err) || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge) ||
		errors.As(err, new(notStoredError)) {
		return err
	}
	return fmt.Errorf("%w: %w", notify.ErrUnknown, err)
}

// NotStored marks an error of a step before the statement that stores something, so that Unknown returns it unchanged.
func NotStored(err error) error { return notStoredError{err} }

type notStoredError struct{ error }

func (e notStoredError) Unwrap() error { return e.error }
