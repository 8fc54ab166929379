package bridge

import (
	"context"
	"fmt"
	"time"

	"github.com/mqnotify/mqnotify/consumer"
)

// Destination is a place to which a bridge sends a topic's rows. Parse makes one from a URL; callers may make their own.
type Destination struct {
	// Name is the destination without its credentials, for logs and errors.
	Name string
	// Open makes a Sink. It connects, verifies that the destination accepts the credentials, and makes the stream or queue for the rows
	// if it does not exist. It must not disturb another Sink of the same destination, because members that stand by also call Open
	// while the group's active member sends. It returns when ctx ends. Its error is a PermanentError if no retry can succeed, and
	// contains no credential.
	Open func(ctx context.Context) (Sink, error)
	// Strict makes the bridge send rows strictly in the order of their ids (consumer.Options.Strict), for a destination that can't
	// store a row that commits late.
	Strict bool
	// InFlight is how many messages one Send gets at most, unless Options.InFlight is set. 0 means 1.
	InFlight int
	// Timeout is how long Send waits for the confirmation of one message, if it has a limit of its own. The default of
	// Options.SendTimeout is longer.
	Timeout time.Duration
}

// Sink sends messages to one destination over one connection. An implementation promises:
//
//   - Send stores the messages in order. It may send all of them before the first is confirmed. A message that the destination first
//     refuses and later accepts may then be stored after later ones, but no message is skipped for good.
//   - Send returns how many of the messages, counted from the first, the destination has confirmed: it has stored them, and keeps them
//     through a restart if it keeps anything. A nil error means that all are confirmed. Unconfirmed messages may be stored too. They are
//     sent again, and a destination that recognizes duplicates drops them or confirms them.
//   - A message has the same MessageID in every Send and from every sender.
//   - The error of Send is about messages[confirmed]. It is a PoisonError if the destination will never accept this message, but would
//     accept others; a PermanentError if no retry can succeed with any message; a LaterError if the destination named a time for the
//     retry; otherwise any error. After an error the bridge closes the Sink and opens another one, which gets a single message first, so
//     that a Sink that can't tell which of several messages failed can tell then.
//   - Send returns when ctx ends, with any error.
//   - Send neither changes the messages nor keeps them after it returns.
//   - Close ends the connection and a running Send. It may be called at any time, by several goroutines at once, and twice. Send after
//     Close returns notify.ErrClosed.
//   - No error contains a credential.
//
// One goroutine at a time calls Send. The caller that opened the Sink closes it. Package sinktest tests these promises on any Sink.
type Sink interface {
	Send(ctx context.Context, messages []consumer.Message) (confirmed int, err error)
	Close() error
}

// PoisonError means that the destination will never accept a message.
type PoisonError struct {
	ID  uint64
	Err error
}

func (e *PoisonError) Error() string { return fmt.Sprintf("message %d is refused: %v", e.ID, e.Err) }
func (e *PoisonError) Unwrap() error { return e.Err }

// PermanentError means that no retry can succeed, for example because the destination refuses the credentials, or is of another kind than
// the URL says.
type PermanentError struct{ Err error }

func (e *PermanentError) Error() string { return e.Err.Error() }
func (e *PermanentError) Unwrap() error { return e.Err }

// LaterError means that the destination asked for a retry no sooner than After from now.
type LaterError struct {
	After time.Duration
	Err   error
}

func (e *LaterError) Error() string { return fmt.Sprintf("%v (retry after %v)", e.Err, e.After) }
func (e *LaterError) Unwrap() error { return e.Err }

func poison(m consumer.Message, format string, args ...any) error {
	return &PoisonError{m.ID, fmt.Errorf(format, args...)}
}

func permanent(err error) error { return &PermanentError{err} }
