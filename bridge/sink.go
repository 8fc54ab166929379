package bridge

import (
	"context"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
)

// Destination is where a topic's rows go: what Parse makes of a URL, or a caller's
// own.
type Destination struct {
	// Name is the destination without its credentials, for logs and errors.
	Name string
	// Open makes a Sink: it connects, proves that the credentials are taken, and makes
	// what the destination needs to take rows (a stream, a queue) if that is not there.
	// It changes nothing that another Sink of the same destination, in another process
	// that is the group's active member, could be harmed by: a member that stands by
	// opens one too. It heeds its context. Its error is a PermanentError if another try
	// can't mend it, and has no credential in it.
	Open func(ctx context.Context) (Sink, error)
	// Strict asks for rows in the order of their ids without exception
	// (consumer.Options.Strict): for a destination that could not take a row which commits
	// late.
	Strict bool
	// InFlight is how many messages Send is given at once at most, unless
	// Options.InFlight says otherwise. 0 means 1.
	InFlight int
	// Timeout is how long it may take to confirm one message, if Send has a limit of its
	// own for that. Options.SendTimeout is more by default.
	Timeout time.Duration
}

// Sink takes messages to one destination over one connection. An implementation
// promises that
//
//   - Send stores the messages in their order. It may have all of them under way at
//     once: one that the destination refuses, and takes when it comes again, may then
//     stand behind later ones, but none is passed over for good.
//   - Send returns how many of the messages, from the first on, the destination has
//     confirmed: it has them, and keeps them through its own restart as far as it keeps
//     anything. A nil error says that it has them all. What is not confirmed may be
//     there nevertheless: it is sent again, and a destination that can tell drops it or
//     says that it has it, which counts as confirmed.
//   - each message carries the same MessageID whenever it is sent, and by any sender.
//   - the error of Send is about messages[confirmed]: a PoisonError if the destination
//     will never take that very message, and would take others; a PermanentError if no
//     try can mend it, whatever the message; a LaterError if the destination said when
//     to come again; any other if another try may. After an error the bridge closes the
//     Sink and opens another one, which gets one message first: a Sink that can't tell
//     which of many messages failed, can tell it then.
//   - Send heeds its context; its error then may be anything.
//   - Send is called by one goroutine at a time. It neither changes the messages nor
//     keeps them after it returned.
//   - Close ends the connection, and a Send that is under way. It may be called at any
//     time, by several goroutines at once, and twice. Send after it is notify.ErrClosed.
//   - no error has a credential in it.
//
// The caller who opened the Sink closes it. Package sinktest tests all this on a Sink of yours, as it does on
// every Sink of this package.
type Sink interface {
	Send(ctx context.Context, messages []consumer.Message) (confirmed int, err error)
	Close() error
}

// PoisonError is a message that the destination will never take.
type PoisonError struct {
	ID  uint64
	Err error
}

func (e *PoisonError) Error() string { return fmt.Sprintf("message %d is refused: %v", e.ID, e.Err) }
func (e *PoisonError) Unwrap() error { return e.Err }

// PermanentError is a failure that another try can't mend: credentials that are
// refused, a destination that is not what the URL says.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// LaterError is a destination's wish to be left alone for a while.
type LaterError struct {
	After time.Duration
	Err   error
}

func (e *LaterError) Error() string { return fmt.Sprintf("%v (again in %v)", e.Err, e.After) }
func (e *LaterError) Unwrap() error { return e.Err }

func poison(m consumer.Message, format string, args ...any) error {
	return &PoisonError{m.ID, fmt.Errorf(format, args...)}
}

func permanent(err error) error { return &PermanentError{err} }
