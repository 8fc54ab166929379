package consumer

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/deadletter"
	"github.com/mqnotify/mqnotify/internal/position"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// delivery passes messages to the handler and moves the group's offset.
type delivery struct {
	handler  Handler
	options  Options
	db       *notify.DB
	offset   ledger // nil without a group
	progress position.Progress

	unsaved bool
	saved   time.Time
	told    uint64 // the watermark that Options.Watch was last called with

	dead   int             // consecutive messages that became dead letters
	pauses backoff.BackOff // the waits after several dead letters in a row; nil before the first
}

// ownError is an error of the delivery, not of the handler: to retry the message would not help.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

var (
	// errUnsaved means that messages were handled and the offset could not be stored.
	errUnsaved = errors.New("the progress could not be stored: handled messages will be handled again")
	// errTxEnded is a mistake in the handler's code, so a retry would not help.
	errTxEnded = errors.New("the handler committed or rolled back its transaction: it must do neither")
)

// run handles batches until ctx ends, the reader closes in, or the handler returns ErrStop. It stores the progress before it
// returns. handling is the handler's context, which ends later than ctx.
func (d *delivery) run(ctx, handling context.Context, in <-chan batch) (err error) {
	d.saved = time.Now()
	if d.options.Watch != nil {
		d.options.Watch(position.Text(&d.progress))
		d.told = d.progress.Settled
	}
	defer func() {
		// Store the progress even after ctx ended, or these messages would be handled again.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if saved := d.save(last); saved != nil {
			if errors.Is(err, errFenced) {
				err = nil // the same error is in saved
			}
			err = errors.Join(err, fmt.Errorf("%w: %w", errUnsaved, saved))
		}
	}()
	flush := time.NewTimer(0)
	defer flush.Stop()
	for {
		select {
		case b, ok := <-in:
			if !ok {
				return nil
			}
			if err := d.batch(ctx, handling, b); err != nil {
				return err
			}
		case <-flush.C:
			if err := d.saveIfDue(ctx); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if d.unsaved {
			flush.Reset(time.Until(d.saved.Add(d.options.FlushInterval)))
		}
	}
}

func (d *delivery) batch(ctx, handling context.Context, b batch) error {
	if d.options.Limit > 0 && int(d.options.counted.Load()) >= d.options.Limit {
		return ErrStop // the limit was reached over an earlier connection
	}
	if !b.inOrder { // in order, the watermark covers them
		for _, id := range b.passed {
			d.progress.Done.Add(id, id)
		}
	}
	size := len(b.messages)
	if d.handler.each {
		size = 1
	}
	for rest := b.messages; len(rest) > 0; rest = rest[size:] {
		size = min(size, len(rest))
		if rest[0].retry { // every retried row has a dead letter of its own
			size = 1
		}
		if d.options.Limit > 0 {
			size = min(size, d.options.Limit-int(d.options.counted.Load()))
		}
		if err := d.deliver(ctx, handling, rest[:size], b.inOrder); err != nil {
			return err
		}
		if n := d.options.counted.Add(int64(size)); d.options.Limit > 0 && int(n) >= d.options.Limit {
			return ErrStop
		}
		if err := d.saveIfDue(ctx); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if b.settled > d.progress.Settled {
		d.progress.Settle(b.settled)
		d.unsaved = d.offset != nil
	}
	if d.options.Watch != nil && d.progress.Settled != d.told {
		d.told = d.progress.Settled
		d.options.Watch(position.Text(&d.progress))
	}
	if b.handled != nil {
		close(b.handled)
	}
	return nil
}

// deliver calls the handler until the messages are handled or have become dead letters.
func (d *delivery) deliver(ctx, handling context.Context, messages []Message, inOrder bool) error {
	if d.dead >= 2 {
		if err := d.pause(ctx); err != nil {
			return err
		}
	}
	messages, attempts, err := d.try(ctx, handling, messages, inOrder)
	if err == nil || errors.Is(err, ErrStop) {
		d.dead, d.pauses = 0, nil
		return err
	}
	if errors.As(err, &ownError{}) {
		return err
	}
	if len(messages) > 1 { // find out which one fails
		for i := range messages {
			if err := d.deliver(ctx, handling, messages[i:i+1], inOrder); err != nil {
				return err
			}
		}
		return nil
	}
	m := messages[0]
	if d.offset == nil {
		return &HandlerError{m.Topic, m.ID, attempts, err}
	}
	d.options.Logger.ErrorContext(ctx, "the message becomes a dead letter", "id", m.ID, "attempts", attempts, "error", err)
	if !errors.Is(err, notify.ErrDead) { // ErrDead concerns this message alone
		d.dead++
	}
	return d.transact(ctx, messages, inOrder, func(tx *sqlx.Tx) error {
		buried := deadletter.Write(ctx, tx, deadletter.Letter{
			Topic: m.Topic, Group: d.options.Group, ID: m.ID, Headers: m.Headers, Payload: m.Payload, IsRow: m.IsRow, Attempts: attempts, Cause: err,
		})
		if buried != nil {
			return stateError("write dead letter", buried)
		}
		if !m.retry {
			return nil
		}
		return endRetry(ctx, tx, d.options.Group, m)
	})
}

// pause waits after two or more messages in a row became dead letters. What the handler needs may be unavailable, and without the wait
// the whole topic would become dead letters.
func (d *delivery) pause(ctx context.Context) error {
	if d.pauses == nil {
		d.pauses = d.options.Retry()
	}
	wait := d.pauses.NextBackOff()
	if wait == backoff.Stop {
		wait = time.Second
	}
	d.options.Logger.WarnContext(ctx, "several messages in a row became dead letters: waiting before the next one", "messages", d.dead, "wait", wait)
	if err := server.Pause(ctx, wait); err != nil {
		return ownError{err}
	}
	return nil
}

// try calls the handler up to MaxAttempts times, with waits in between. An error that is not an ownError is the handler's last. rest
// are the messages that the handler has not handled.
func (d *delivery) try(ctx, handling context.Context, messages []Message, inOrder bool) (rest []Message, attempts int, err error) {
	var waits backoff.BackOff // created only after a failure, because creating it costs as much as reading a row
	for attempts = 1; ; attempts++ {
		if err = d.once(handling, messages, inOrder); err == nil || errors.Is(err, ErrStop) {
			return nil, attempts, err
		}
		if n := d.handledOf(err, len(messages)); n > 0 {
			d.note(&d.progress, messages[:n], inOrder)
			d.unsaved = d.offset != nil
			if messages = messages[n:]; len(messages) == 0 {
				return nil, attempts, nil
			}
			waits, attempts = nil, 1
		}
		if errors.As(err, &ownError{}) {
			return messages, attempts, err
		}
		if ctx.Err() != nil || handling.Err() != nil { // stop without blaming the message
			return messages, attempts, ownError{cmp.Or(context.Cause(ctx), context.Cause(handling))}
		}
		if errors.Is(err, notify.ErrDead) {
			return messages, attempts, err
		}
		if waits == nil {
			waits = d.options.Retry()
		}
		pause := waits.NextBackOff()
		if d.options.MaxAttempts > 0 && attempts >= d.options.MaxAttempts || pause == backoff.Stop {
			return messages, attempts, err
		}
		d.options.Logger.WarnContext(ctx, "handler failed", "id", messages[0].ID, "messages", len(messages), "attempt", attempts, "error", err)
		if err := server.Pause(ctx, pause); err != nil {
			return messages, attempts, ownError{err}
		}
	}
}

// handledOf returns how many messages of a page the handler reported as handled in err.
func (d *delivery) handledOf(err error, most int) int {
	var part *partialError
	if d.handler.tx || d.handler.each || !errors.As(err, &part) {
		return 0
	}
	return max(0, min(part.n, most))
}

// once calls the handler one time, and records the progress.
func (d *delivery) once(ctx context.Context, messages []Message, inOrder bool) error {
	untimed := ctx
	if d.options.HandlerTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, d.options.HandlerTimeout,
			fmt.Errorf("the handler took longer than %v", d.options.HandlerTimeout))
		defer cancel()
	}
	if d.handler.tx {
		return d.transact(ctx, messages, inOrder, func(tx *sqlx.Tx) error {
			err := d.handler.call(ctx, tx, messages)
			if messages[0].retry && (err == nil || errors.Is(err, ErrStop)) {
				if lost := d.retried(ctx, tx, messages[0]); lost != nil {
					return lost
				}
			}
			return err
		})
	}
	err := d.handler.call(ctx, nil, messages)
	var part *partialError
	if !d.handler.each && errors.As(err, &part) && errors.Is(err, ErrStop) { // the rest of the page was not handled
		if messages = messages[:d.handledOf(err, len(messages))]; len(messages) == 0 {
			return err
		}
	}
	if messages[0].retry {
		if err != nil && !errors.Is(err, ErrStop) && d.handledOf(err, 1) == 0 {
			return err
		}
		// The handler may have returned nil after its timeout.
		lost := d.transact(untimed, messages, inOrder, func(tx *sqlx.Tx) error { return d.retried(untimed, tx, messages[0]) })
		switch {
		case lost != nil:
			return lost
		case errors.Is(err, ErrStop):
			return err
		}
		return nil
	}
	if err == nil || errors.Is(err, ErrStop) {
		d.note(&d.progress, messages, inOrder)
		d.unsaved = d.offset != nil
	}
	return err
}

func (d *delivery) note(p *position.Progress, messages []Message, inOrder bool) {
	for _, m := range messages {
		if !m.retry {
			if inOrder {
				p.Settle(m.ID)
			} else {
				p.Done.Add(m.ID, m.ID)
			}
		}
	}
}

// transact runs f in a transaction that also moves the offset past the messages.
func (d *delivery) transact(ctx context.Context, messages []Message, inOrder bool, f func(tx *sqlx.Tx) error) error {
	tx, err := d.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return ownError{fmt.Errorf("consumer: begin: %w", err)}
	}
	done := f(tx)
	if ctx.Err() != nil { // the transaction has ended with ctx
		_ = tx.Rollback()
		return context.Cause(ctx)
	}
	if done != nil && !errors.Is(done, ErrStop) {
		if err := tx.Rollback(); err != nil { // the connection is lost, so f's own error says nothing about the message
			return ownError{fmt.Errorf("consumer: roll back: %w", errors.Join(ended(err), done))}
		}
		return done
	}
	next := d.progress.Clone()
	d.note(&next, messages, inOrder)
	whole, err := d.offset.storeOf(ctx, tx, next, messages)
	if err != nil {
		_ = tx.Rollback()
		return ownError{ended(err)}
	}
	if err := tx.Commit(); err != nil {
		// The commit may have happened. Only the stored offset knows, so the progress in memory must not overwrite it.
		d.unsaved = false
		return ownError{fmt.Errorf("consumer: commit: %w", err)}
	}
	d.progress, d.unsaved = next, !whole
	if whole {
		d.saved = time.Now()
	}
	return done
}

// ended returns errTxEnded if the handler ended the transaction, and err otherwise.
func ended(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return errTxEnded
	}
	return err
}

func (d *delivery) saveIfDue(ctx context.Context) error {
	if !d.unsaved || time.Since(d.saved) < d.options.FlushInterval {
		return nil
	}
	return d.save(ctx)
}

// save stores the progress if it has changed. Without a group it never counts as changed.
func (d *delivery) save(ctx context.Context) error {
	if !d.unsaved {
		return nil
	}
	if err := d.offset.store(ctx, d.db.Pool(), d.progress); err != nil {
		return err
	}
	d.unsaved, d.saved = false, time.Now()
	return nil
}
