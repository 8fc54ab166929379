// Package dberror says what an error of the server means to a caller, and what to do about it.
package dberror

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// Explain adds what callers decide on to an error of a statement on mqnotify's tables: notify.ErrNoState, notify.ErrDenied,
// notify.ErrReadOnly, or a *notify.TooLargeError for what was to be stored. roles are those of `mqnotify grants`. Other errors
// stay as they are.
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

// Unknown makes a notify.ErrUnknown of the error of a commit that nothing answered. The server's own error is an answer (a
// statement that fails is rolled back), and two of the driver's mean that nothing was sent.
func Unknown(err error) error {
	if err == nil || server.Number(err) != 0 || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", notify.ErrUnknown, err)
}
