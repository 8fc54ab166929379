package producer

import (
	"context"
	"fmt"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// PublishTx stores the messages inside the caller's transaction. They are published when it commits, and vanish if it rolls back.
// The caller commits, and calls Notify afterwards. After an error the caller rolls back, because the transaction may already
// contain some of the messages.
//
// The transaction's database must be the topic's, and its connection must use UTF-8.
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
	if server.IsPool(tx) {
		return nil, fmt.Errorf("%w: PublishTx on a pool, which commits each statement by itself: "+
			"begin a transaction and pass that, or call Publish", notify.ErrOptions)
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

// Transact runs f in a transaction, commits it, and then wakes the listeners as Notify does. If f returns an error or panics,
// Transact rolls back.
//
// After a deadlock or a lock wait timeout Transact runs the transaction again from its start, a few times at most. f may therefore
// run more than once, and its effects outside the transaction must tolerate that. f must return such errors, wrapped or not, and
// must neither commit nor roll back.
//
// notify.ErrUnknown means that the connection was lost during the commit, or that it had no answer 5 s after the end of ctx.
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
