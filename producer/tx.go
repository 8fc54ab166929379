package producer

import (
	"context"
	"errors"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// PublishTx stores the messages inside the caller's transaction, so that they are
// published if it commits and never were if it does not. The caller commits, and
// calls Notify after it. After an error the caller rolls back: some of the
// messages may be in the transaction already.
//
// The transaction's database must be the topic's, and its connection in UTF-8.
func (p *Producer) PublishTx(ctx context.Context, tx notify.Tx, messages ...Message) ([]uint64, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	ids, err := p.publishTx(ctx, tx, messages)
	if err != nil {
		return nil, p.explain(err)
	}
	return ids, nil
}

func (p *Producer) publishTx(ctx context.Context, tx notify.Tx, messages []Message) ([]uint64, error) {
	if p.handshake != nil {
		return nil, errTurns
	}
	if p.closed.Load() {
		return nil, notify.ErrClosed
	}
	if _, pool := tx.(interface{ SetMaxOpenConns(n int) }); pool {
		return nil, errors.New("PublishTx on a pool, where each statement is committed by itself: " +
			"begin a transaction and pass that, or call Publish")
	}
	rows, err := encode(messages)
	if err != nil {
		return nil, err
	}
	plan, err := p.plan(ctx, tx, rows)
	if err != nil {
		return nil, err
	}
	return p.insert(ctx, tx, plan)
}

// Transact runs f in a transaction, commits it, and then wakes the listeners, as Notify
// does. When f returns an error or panics, the transaction is rolled back.
//
// After a deadlock or a lock that took too long the transaction is run again from
// its start, a few times at most, so f may run more than once: what it does
// outside the transaction must bear that. f passes such errors on, wrapped or not,
// and neither commits nor rolls back itself.
//
// notify.ErrUnknown says that the connection was lost during the commit. The commit does
// not heed ctx; the DSN's readTimeout bounds it.
func (p *Producer) Transact(ctx context.Context, f func(ctx context.Context, tx *sqlx.Tx) error) error {
	if p.handshake != nil {
		return p.explain(errTurns)
	}
	if p.closed.Load() {
		return p.explain(notify.ErrClosed)
	}
	if err := server.Again(ctx, server.Retryable, func() error { return p.transact(ctx, f) }); err != nil {
		return err
	}
	p.Notify(ctx)
	return nil
}

func (p *Producer) transact(ctx context.Context, f func(ctx context.Context, tx *sqlx.Tx) error) error {
	tx, err := p.db.Pool().BeginTxx(ctx, nil)
	if err != nil {
		return p.explain(fmt.Errorf("begin: %w", err))
	}
	defer func() { _ = tx.Rollback() }() // does nothing after a commit
	if err := f(ctx, tx); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return p.explain(fmt.Errorf("commit: %w", context.Cause(ctx)))
	}
	if err := tx.Commit(); err != nil {
		return p.explain(p.doubt(fmt.Errorf("commit: %w", err)))
	}
	return nil
}
