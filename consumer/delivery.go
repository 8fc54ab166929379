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
	"github.com/mqnotify/mqnotify/notify"
)

// delivery gives messages to the handler and moves the group's offset.
type delivery struct {
	handler  Handler
	options  Options
	db       *notify.DB
	offset   ledger // nil without a group
	progress position.Progress

	unsaved bool
	saved   time.Time
	told    uint64 // the watermark that Options.Watch knows

	dead   int             // messages that went to the dead letters one after the other
	pauses backoff.BackOff // the waits after such; nil before the first
}

// ownError is an error that is not the handler's: no retry of a message mends it.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

var (
	// errUnsaved says that messages were handled and the offset does not tell.
	errUnsaved = errors.New("what was handled could not be stored: it will be handled again")
	// errTxEnded is a handler's fault that no retry mends.
	errTxEnded = errors.New("the handler committed or rolled back the transaction that it was given: it must only use it")
)

// run handles batches until the context ends, the reader closes in, or the
// handler says ErrStop. What was handled is stored before it returns. handling is
// the handler's context, which ends later than the delivery's own.
func (d *delivery) run(ctx, handling context.Context, in <-chan batch) (err error) {
	d.saved = time.Now()
	if d.options.Watch != nil {
		d.options.Watch(position.Text(&d.progress))
		d.told = d.progress.Settled
	}
	defer func() {
		// A context that ended must not make what was handled be handled again.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer cancel()
		if saved := d.save(last); saved != nil {
			if errors.Is(err, errFenced) {
				err = nil // said below
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
		return ErrStop // reached over an earlier connection
	}
	if !b.inOrder { // else they are below what is handled, or settled
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
		if rest[0].retry { // each with its own dead letter
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
	d.watched()
	if b.handled != nil {
		close(b.handled)
	}
	return nil
}

// watched tells Options.Watch that the watermark has moved.
func (d *delivery) watched() {
	if d.options.Watch != nil && d.progress.Settled != d.told {
		d.told = d.progress.Settled
		d.options.Watch(position.Text(&d.progress))
	}
}

// deliver gives messages to the handler until they are handled or dead.
func (d *delivery) deliver(ctx, handling context.Context, messages []Message, inOrder bool) error {
	if err := d.pause(ctx); err != nil {
		return err
	}
	messages, attempts, err := d.try(ctx, handling, messages, inOrder)
	if err == nil || errors.Is(err, ErrStop) {
		d.dead, d.pauses = 0, nil
		return err
	}
	if errors.As(err, &ownError{}) {
		return err
	}
	if len(messages) > 1 { // which of them is it?
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
	d.options.Logger.ErrorContext(ctx, "message goes to the dead letters", "id", m.ID, "attempts", attempts, "error", err)
	if !errors.Is(err, notify.ErrDead) { // which is about this message alone
		d.dead++
	}
	return d.transact(ctx, messages, inOrder, func(tx *sqlx.Tx) error {
		buried := deadletter.Write(ctx, tx, deadletter.Letter{
			Topic: m.Topic, Group: d.options.Group, ID: m.ID, Headers: m.Headers, Payload: m.Payload, Attempts: attempts, Cause: err,
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

// pause waits when several messages in a row went to the dead letters: what the handler needs may be away, and the whole topic
// would go there.
func (d *delivery) pause(ctx context.Context) error {
	if d.dead < 2 {
		return nil
	}
	if d.pauses == nil {
		d.pauses = d.options.Retry()
	}
	wait := d.pauses.NextBackOff()
	if wait == backoff.Stop {
		wait = time.Second
	}
	d.options.Logger.WarnContext(ctx, "messages went to the dead letters one after the other: waiting before the next", "messages", d.dead, "wait", wait)
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ownError{context.Cause(ctx)}
	}
}

// try calls the handler up to MaxAttempts times, with waits between. An error that
// is no ownError is the handler's last. The rest are the messages that it has not
// handled.
func (d *delivery) try(ctx, handling context.Context, messages []Message, inOrder bool) (rest []Message, attempts int, err error) {
	var waits backoff.BackOff // made when it is needed: it costs as much as reading a row
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
		if ctx.Err() != nil || handling.Err() != nil { // no further attempt, and no verdict on the message
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
		wait := time.NewTimer(pause)
		select {
		case <-wait.C:
		case <-ctx.Done():
			wait.Stop()
			return messages, attempts, ownError{context.Cause(ctx)}
		}
	}
}

// handledOf is how many messages of a page were handled although there is an error.
func (d *delivery) handledOf(err error, most int) int {
	var part *partialError
	if d.handler.tx || !errors.As(err, &part) {
		return 0
	}
	return max(0, min(part.n, most))
}

// once calls the handler one time, and notes what it has done.
func (d *delivery) once(ctx context.Context, messages []Message, inOrder bool) error {
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
	if messages[0].retry {
		if err != nil && !errors.Is(err, ErrStop) && d.handledOf(err, 1) == 0 {
			return err
		}
		lost := d.transact(ctx, messages, inOrder, func(tx *sqlx.Tx) error { return d.retried(ctx, tx, messages[0]) })
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

// transact runs f in a transaction that moves the offset past the messages too.
func (d *delivery) transact(ctx context.Context, messages []Message, inOrder bool, f func(tx *sqlx.Tx) error) error {
	tx, err := d.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return ownError{fmt.Errorf("consumer: begin: %w", err)}
	}
	done := f(tx)
	if ctx.Err() != nil { // and with it the transaction
		_ = tx.Rollback()
		return context.Cause(ctx)
	}
	if done != nil && !errors.Is(done, ErrStop) {
		if err := tx.Rollback(); err != nil { // the connection is gone, whatever f said
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
		// Done or not: only the stored offset knows, and what is known here must not
		// be stored over it.
		d.unsaved = false
		return ownError{fmt.Errorf("consumer: commit: %w", err)}
	}
	d.progress, d.unsaved = next, !whole
	if whole {
		d.saved = time.Now()
	}
	return done
}

// ended tells the handler's fault from a lost connection.
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

// save stores the progress, if there is any and a group.
func (d *delivery) save(ctx context.Context) error {
	if !d.unsaved || d.offset == nil {
		return nil
	}
	if err := d.offset.store(ctx, d.db.Pool(), d.progress); err != nil {
		return err
	}
	d.unsaved, d.saved = false, time.Now()
	return nil
}
