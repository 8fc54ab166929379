package consumer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/jmoiron/sqlx"
)

// ErrStop is returned by a handler, alone or wrapped, to end Run once the messages
// in hand are done: they count as handled, and Run returns nil.
var ErrStop = errors.New("stop consuming")

// Handler is what is done with messages: made by Each, Batch, EachTx or BatchTx.
// It is called by one goroutine at a time. An error, or a panic, means that the
// messages were not handled: they are tried again.
//
// Its context ends when the group's lock is lost, when Options.HandlerTimeout has
// passed, or Options.StopTimeout after the end of Run's own context. A handler
// that goes on after that is waited for.
type Handler struct {
	handle func(ctx context.Context, tx *sqlx.Tx, messages []Message) error
	each   bool
	tx     bool
}

// Each handles one message, at least once.
func Each(handle func(ctx context.Context, m Message) error) Handler {
	return Handler{each: true, handle: func(ctx context.Context, _ *sqlx.Tx, messages []Message) error {
		return handle(ctx, messages[0])
	}}
}

// Batch handles a page of messages, Options.PageRows of them at most, at least once.
func Batch(handle func(ctx context.Context, messages []Message) error) Handler {
	return Handler{handle: func(ctx context.Context, _ *sqlx.Tx, messages []Message) error {
		return handle(ctx, messages)
	}}
}

// EachTx handles one message in a transaction that commits the offset too: what
// it does in tx is done exactly once. It must neither commit nor roll back, and it
// must return the error of every statement that fails: after some (a deadlock) the
// server has rolled back what was done before, and would commit the rest without
// it. It needs a group.
func EachTx(handle func(ctx context.Context, tx *sqlx.Tx, m Message) error) Handler {
	return Handler{each: true, tx: true, handle: func(ctx context.Context, tx *sqlx.Tx, messages []Message) error {
		return handle(ctx, tx, messages[0])
	}}
}

// BatchTx is EachTx for a page of messages.
func BatchTx(handle func(ctx context.Context, tx *sqlx.Tx, messages []Message) error) Handler {
	return Handler{tx: true, handle: handle}
}

// Handled is what a handler made by Batch returns when it has done the first n messages
// of its page and err kept it from the next one: those n count as handled, and the
// rest is tried again. For other handlers it is err.
func Handled(n int, err error) error {
	if err == nil {
		return nil
	}
	return &partialError{n, err}
}

// partialError is a page of which the first messages were handled.
type partialError struct {
	n   int
	err error
}

func (e *partialError) Error() string { return e.err.Error() }
func (e *partialError) Unwrap() error { return e.err }

// HandlerError is a handler's last failure with a message, when it was tried
// Options.MaxAttempts times, or failed with notify.ErrDead, and there is no group whose dead
// letters could take it.
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
