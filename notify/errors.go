package notify

import (
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/table"
)

// Errors that callers decide on, with errors.Is. All packages return them. An error's text names the object and the remedy.
var (
	// ErrOptions means that an option, an argument or a setting makes no sense, or contradicts what is stored.
	ErrOptions = core.ErrOptions
	// ErrClosed means that the object was closed, or does not run.
	ErrClosed = errors.New("closed")
	// ErrNoTable means that there is no table of the name.
	ErrNoTable = table.ErrNoTable
	// ErrNotTopic means that the table is not of the kind that is needed: it is a view, has no key to read it by, lacks a
	// column, or is no message table.
	ErrNotTopic = table.ErrNotTopic
	// ErrNoState means that the database lacks the tables that `mqnotify init` makes.
	ErrNoState = errors.New("the tables of mqnotify are not in this database: make them with `mqnotify init`")
	// ErrVersion means that the tables of mqnotify in the database are older or newer than the program: run `mqnotify init`, or
	// update the program. A DB checks the version when it connects, until it is right. An account that may not read the table
	// mqnotify_schema is not refused.
	ErrVersion = core.ErrVersion
	// ErrDenied means that the account lacks a privilege.
	ErrDenied = errors.New("the account may not do this")
	// ErrReadOnly means that the server takes no writes.
	ErrReadOnly = errors.New("the server is read-only")
	// ErrNotAcquired means that another session or another holder has the lock.
	ErrNotAcquired = core.ErrNotAcquired
	// ErrLockLost means that the caller does not hold the lock any more, and that another one may hold it. It is in the
	// cause of the contexts that end with the loss.
	ErrLockLost = core.ErrLockLost
	// ErrUnknown means that the connection ended, or the context, after a commit was asked for and before its answer came:
	// what was to be committed is stored, or it is not. Doing it again may do it twice, and not doing so may lose it. A
	// caller that can tell, by a key in the data, looks first.
	ErrUnknown = errors.New("no answer to the commit: it may have happened or not")
	// ErrDead is for handlers to return, alone or wrapped: another attempt would fail as well. The message or the task goes
	// to the dead letters at once.
	ErrDead = errors.New("not to be tried again")
)

// TooLargeError means that a message or a task fits into no packet of the server's. Nothing was stored.
type TooLargeError struct {
	What  string // "message", "task" or "row"
	Index int    // which of those that were given, from 0
	Size  int    // the bytes that it takes in a packet; 0 if the server or the driver refused it, and which is not known
	Limit int    // the server's max_allowed_packet, in bytes
}

func (e *TooLargeError) Error() string {
	if e.Size == 0 {
		return "the " + e.What + " is too large: raise the server's max_allowed_packet, or the DSN's maxAllowedPacket"
	}
	return fmt.Sprintf("%s %d takes %d bytes, and the server's max_allowed_packet is %d: raise it there, or store the payload elsewhere",
		e.What, e.Index+1, e.Size, e.Limit)
}
