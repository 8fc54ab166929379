package queue

import (
	"database/sql/driver"
	"errors"
	"fmt"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
)

// Errors that callers decide on, with errors.Is.
var (
	// ErrNoQueue means that there is no queue of the name: [Create] makes it, and
	// `mqnotify init --queue NAME`.
	ErrNoQueue = errors.New("the queue does not exist")
	// ErrNoRing means that there is no ring buffer of the name: [CreateRing] makes it, and
	// `mqnotify ring create NAME`.
	ErrNoRing = errors.New("the ring does not exist")
	// ErrNoState means that the database lacks the tables of the queues.
	ErrNoState = errors.New("the database has no tables for queues: make them with `mqnotify init`")
	// ErrOptions means that an argument or an option makes no sense; the error says which.
	ErrOptions = errors.New("wrong use")
	// ErrClaimLost is the cause of the end of a handler's context, and what [FinishTx]
	// returns, when the task is not the worker's any more: its claim lapsed, since the
	// server was out of reach, or the task was cancelled.
	ErrClaimLost = errors.New("the claim on the task is lost")
	// ErrDead is for handlers to return, wrapped: the task is dead at once, however many
	// retries it has left.
	ErrDead = errors.New("not to be tried again")
	// ErrUnknown means that the connection ended, or the context, after the commit was
	// asked for and before its answer came: the tasks are queued, or they are not. One
	// with a unique key can be entered again without harm.
	ErrUnknown = errors.New("no answer to the commit: the tasks may be queued or not")
	// ErrTooLarge means that a payload fits into no packet of the server's. errors.As with a
	// *[TooLargeError] tells more, if it was found before anything was sent.
	ErrTooLarge = errors.New("the payload is too large")
	// ErrClosed means that the Queue or the Ring was closed.
	ErrClosed = errors.New("closed")
	// ErrDenied means that the account lacks a privilege.
	ErrDenied = errors.New("the account may not do this")
	// ErrLapped means that a ring's reader was overtaken by its writers. errors.As with
	// a *[LappedError] tells by how much.
	ErrLapped = errors.New("entries were overwritten before they were read")
	// ErrRingShorter means that a ring ends before the place where its reader was: the ring was deleted and
	// made again, or the server has lost committed entries.
	ErrRingShorter = errors.New("the ring has fewer entries than were read")
)

// LappedError is an ErrLapped with its figure.
type LappedError struct {
	Ring   string
	Missed uint64 // how many entries were overwritten unread
}

func (e *LappedError) Error() string {
	return fmt.Sprintf("queue: ring %q: %d %v: a larger ring, or a faster reader, would have them", e.Ring, e.Missed, ErrLapped)
}

// Is makes every LappedError an ErrLapped.
func (e *LappedError) Is(target error) bool { return target == ErrLapped }

// TooLargeError is an ErrTooLarge with its figures.
type TooLargeError struct {
	Size  int // bytes that the task takes in a packet
	Limit int // the server's max_allowed_packet, in bytes
}

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the task takes %d bytes, and the server's max_allowed_packet is %d: raise it there, or store the payload elsewhere",
		e.Size, e.Limit)
}

// Is makes every TooLargeError an ErrTooLarge.
func (e *TooLargeError) Is(target error) bool { return target == ErrTooLarge }

func optionsf(format string, args ...any) error {
	return fmt.Errorf("queue: %w: %w", ErrOptions, fmt.Errorf(format, args...))
}

// doubt makes an ErrUnknown of an error that answers no commit.
func doubt(err error) error {
	if err == nil || server.Number(err) != 0 || errors.Is(err, driver.ErrBadConn) || errors.Is(err, mysql.ErrPktTooLarge) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// explain says what to do about an error of the server's.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case server.Is(err, server.ErrNoSuchTable, server.ErrBadField):
		return fmt.Errorf("%w: %w", ErrNoState, err)
	case server.NoPrivilege(err):
		return fmt.Errorf("%w: `mqnotify grants --role enqueuer,worker,tasks,scheduler,ring` shows what it needs: %w", ErrDenied, err)
	case server.ReadOnly(err):
		return fmt.Errorf("the server is read-only: connect to the primary: %w", err)
	case server.Is(err, server.ErrCheckRead):
		return fmt.Errorf("begin the transaction READ COMMITTED: a row has changed since its first read: %w", err)
	case server.Is(err, server.ErrPacketTooLarge), errors.Is(err, mysql.ErrPktTooLarge):
		return fmt.Errorf("%w: raise the server's max_allowed_packet, or the DSN's maxAllowedPacket: %w", ErrTooLarge, err)
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
