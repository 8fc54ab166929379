package queue

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// Errors that callers decide on, with errors.Is, next to those of notify.
var (
	// ErrNotFound means that there is no queue, or no ring buffer, of the name: [Create] and [CreateRing] make them, and so do
	// `mqnotify init --queue NAME` and `mqnotify ring create NAME`.
	ErrNotFound = errors.New("does not exist")
	// ErrClaimLost is the cause of the end of a handler's context, and what [FinishTx]
	// returns, when the task is not the worker's any more: its claim lapsed, since the
	// server was out of reach, or the task was cancelled.
	ErrClaimLost = errors.New("the claim on the task is lost")
	// ErrRingShorter means that a ring ends before the place where its reader was: the ring was deleted and
	// made again, or the server has lost committed entries.
	ErrRingShorter = errors.New("the ring has fewer entries than were read")
)

func optionsf(format string, args ...any) error {
	return fmt.Errorf("queue: %w: %w", notify.ErrOptions, fmt.Errorf(format, args...))
}

// doubt makes a notify.ErrUnknown of an error that answers no commit.
func doubt(err error) error {
	if err == nil || server.Number(err) != 0 || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", notify.ErrUnknown, err)
}

// explain says what to do about an error of the server's.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case server.Is(err, server.ErrNoSuchTable, server.ErrBadField):
		return fmt.Errorf("%w: %w", notify.ErrNoState, err)
	case server.NoPrivilege(err):
		return fmt.Errorf("%w: `mqnotify grants --role enqueuer,worker,tasks,scheduler,ring` shows what it needs: %w", notify.ErrDenied, err)
	case server.ReadOnly(err):
		return fmt.Errorf("%w: connect to the primary: %w", notify.ErrReadOnly, err)
	case server.Is(err, server.ErrCheckRead):
		return fmt.Errorf("begin the transaction READ COMMITTED: a row has changed since its first read: %w", err)
	case server.Is(err, server.ErrPacketTooLarge), errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("%w: %w", &notify.TooLargeError{What: "task"}, err)
	}
	return err
}

// checkName returns what is wrong with the name of a queue, a ring or a schedule.
func checkName(what, name string, most int) error {
	if problem := badText(name, most); problem != "" {
		return optionsf("%s %.80q: %s", what, name, problem)
	}
	return nil
}
