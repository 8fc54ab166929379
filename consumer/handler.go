package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/jmoiron/sqlx"
)

// ErrStop is an error that a handler returns, alone or wrapped, to end Run: the current messages count as handled, and Run returns
// nil.
var ErrStop = errors.New("stop consuming")

// Handler handles messages. Make one with Each, Batch, EachTx or BatchTx. One goroutine at a time calls it. An error, or a panic,
// means that the messages were not handled; they are tried again.
//
// Its context ends when the group's lock is lost, when Options.HandlerTimeout has passed, or Options.StopTimeout after the end of
// Run's own context. Run waits for a handler that continues after that.
type Handler struct {
	handle func(ctx context.Context, tx *sqlx.Tx, messages []Message) error
	each   bool
	tx     bool
}

// Each returns a handler of one message, which handles it at least once.
func Each(handle func(ctx context.Context, m Message) error) Handler {
	if handle == nil {
		return Handler{} // which Run refuses
	}
	return Handler{each: true, handle: func(ctx context.Context, _ *sqlx.Tx, messages []Message) error {
		return handle(ctx, messages[0])
	}}
}

// Batch returns a handler of a page of at most Options.PageRows messages, which handles them at least once.
func Batch(handle func(ctx context.Context, messages []Message) error) Handler {
	if handle == nil {
		return Handler{}
	}
	return Handler{handle: func(ctx context.Context, _ *sqlx.Tx, messages []Message) error {
		return handle(ctx, messages)
	}}
}

// EachTx returns a handler of one message in a transaction that also commits the offset, so that its statements in tx take effect
// exactly once. It must neither commit nor roll back. It must return the error of every statement that fails, because after some
// errors (a deadlock) the server has rolled back the earlier statements and would commit only the rest. It needs a group.
func EachTx(handle func(ctx context.Context, tx *sqlx.Tx, m Message) error) Handler {
	if handle == nil {
		return Handler{}
	}
	return Handler{each: true, tx: true, handle: func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
		return handle(ctx, tx, messages[0])
	}}
}

// BatchTx is EachTx for a page of messages.
func BatchTx(handle func(ctx context.Context, tx *sqlx.Tx, messages []Message) error) Handler {
	return Handler{tx: true, handle: handle}
}

// Handled returns an error for a handler made by Batch that has handled the first n messages of its page and failed with err at the
// next one. Those n count as handled, and the rest is tried again, with ErrStop by the next Run. With other handlers it means err. It
// returns nil if err is nil.
func Handled(n int, err error) error {
	if err == nil {
		return nil
	}
	return &partialError{n, err}
}

// partialError is the error of a page of which the handler has handled the first messages.
type partialError struct {
	n   int
	err error
}

func (e *partialError) Error() string { return e.err.Error() }
func (e *partialError) Unwrap() error { return e.err }

// HandlerError is a handler's last failure with a message that was tried Options.MaxAttempts times, or that failed with
// notify.ErrDead. Run returns it if there is no group with dead letters.
type HandlerError struct {
	Topic    string
	ID       uint64
	Attempts int
	Err      error
}

func (e *HandlerError) Error() string {
	return fmt.Sprintf("consumer: message %d of %s failed %d times: %v", e.ID, e.Topic, e.Attempts, e.Err)
}

func (e *HandlerError) Unwrap() error { return e.Err }

// call calls the handler and turns a panic into an error.
func (h Handler) call(ctx context.Context, tx *sqlx.Tx, messages []Message) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("the handler panicked: %v\n%s", value, debug.Stack())
		}
	}()
	return h.handle(ctx, tx, messages)
}

// retryHeader is the header of a message that was published again for the group that had made it a dead letter. Its value is
// "GROUP/ID", with the id that the message had. All other groups count the message as handled without calling the handler; a consumer
// without a group handles it.
const retryHeader = "mqnotify-retry"

// of returns a handler that skips messages that are not for the group.
func (h Handler) of(group string) Handler {
	if group == "" {
		return h
	}
	handle := h.handle
	h.handle = func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
		foreign := func(m Message) bool {
			retry := cmp.Or(m.Headers[retryHeader], m.retryOf)
			at := strings.LastIndexByte(retry, '/') // the group's name may contain a slash, too
			return at >= 0 && retry[:at] != group
		}
		if !slices.ContainsFunc(messages, foreign) {
			return handle(ctx, tx, messages)
		}
		var ours []Message
		var places []int
		for i, m := range messages {
			if !foreign(m) {
				ours, places = append(ours, m), append(places, i)
			}
		}
		if len(ours) == 0 {
			return nil
		}
		err := handle(ctx, tx, ours)
		var part *partialError
		if errors.As(err, &part) && part.n > 0 {
			return Handled(places[min(part.n, len(ours))-1]+1, part.err)
		}
		return err
	}
	return h
}
