package notify

import (
	"errors"
	"fmt"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/table"
)

// Errors to check with errors.Is. All packages return them. The text of an error names the object and the remedy.
var (
	// ErrOptions means that an option, an argument or a setting is invalid, or contradicts the stored state.
	ErrOptions = core.ErrOptions
	// ErrClosed means that the object is closed, or does not run.
	ErrClosed = errors.New("closed")
	// ErrNoTable means that no table has the name.
	ErrNoTable = table.ErrNoTable
	// ErrNotTopic means that the table is of the wrong kind: it is a view, has no key to read it by, lacks a column, or is not
	// a message table.
	ErrNotTopic = table.ErrNotTopic
	// ErrNoState means that the database lacks the tables that `mqnotify init` makes.
	ErrNoState = errors.New("the tables of mqnotify are not in this database: make them with `mqnotify init`")
	// ErrVersion means that the tables of mqnotify in the database are older or newer than the program: run `mqnotify init`, or
	// update the program. A DB checks the version at every new connection until one check succeeds. An account that may not read
	// the table mqnotify_schema passes the check.
	ErrVersion = core.ErrVersion
	// ErrDenied means that the account lacks a privilege.
	ErrDenied = errors.New("the account lacks a privilege")
	// ErrReadOnly means that the server takes no writes.
	ErrReadOnly = core.ErrReadOnly
	// ErrNotAcquired means that another session or holder has the lock.
	ErrNotAcquired = core.ErrNotAcquired
	// ErrLockLost means that the caller no longer holds the lock, and that another session may hold it. It is in the cause of
	// the contexts that end with the loss.
	ErrLockLost = core.ErrLockLost
	// ErrUnknown means that the connection or the context ended after a commit was sent and before its answer came. The
	// transaction may be stored or not. To repeat it may store it twice; not to repeat it may lose it. A caller whose data has
	// a unique key reads first whether it is stored.
	ErrUnknown = errors.New("no answer to the commit: it may have happened or not")
	// ErrDead is an error that handlers return, alone or wrapped, when another attempt would fail as well. The message or the
	// task goes to the dead letters at once.
	ErrDead = errors.New("not to be tried again")
)

// TooLargeError means that a message, a task, a row or an entry does not fit into a packet of the server. Nothing was stored.
type TooLargeError struct {
	What  string // "message", "task", "row" or "entry"
	Index int    // its index among the messages, tasks or entries of the call, from 0
	Size  int    // its size in a packet, in bytes; 0 if the server or the driver refused it and did not say which one
	Limit int    // the server's max_allowed_packet, in bytes
}

func (e *TooLargeError) Error() string {
	if e.Size == 0 {
		return "the " + e.What + " is too large: raise the server's max_allowed_packet, or the DSN's maxAllowedPacket"
	}
	return fmt.Sprintf("%s %d takes %d bytes, and the server's max_allowed_packet is %d: raise it there, or store the payload elsewhere",
		e.What, e.Index+1, e.Size, e.Limit)
}
