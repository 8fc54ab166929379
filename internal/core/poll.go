package core

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// Poll is a waiter that reads the source repeatedly, with waits that grow as long as the head stays and fall back when it changes.
type Poll struct {
	session *Session
	source  Source
	waits   backoff.BackOff
	once    sync.Once
	closed  chan struct{}
}

var _ Waiter = (*Poll)(nil)

var errClosed = errors.New("the waiter was closed")

// NewPoll returns a waiter that reads the source over session, with the waits of the policy. The session stays the caller's, which may
// use it for other statements.
func NewPoll(session *Session, source Source, waits backoff.BackOff) *Poll {
	return &Poll{session: session, source: source, waits: waits, closed: make(chan struct{})}
}

// Head implements [Waiter].
func (p *Poll) Head(ctx context.Context) (Head, error) {
	return p.source.read(ctx, p.session)
}

// Wait implements [Waiter].
func (p *Poll) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	deadline := time.Now().Add(bound)
	for {
		if err := sleep(ctx, p.session, p.closed, p.waits, time.Until(deadline)); err != nil {
			return seen, err
		}
		head, err := p.source.read(ctx, p.session)
		if err != nil {
			return seen, err
		}
		if p.source.changed(head, seen) {
			p.waits.Reset()
			return head, nil
		}
		if !time.Now().Before(deadline) {
			return head, nil
		}
	}
}

// Close implements [Waiter]. It ends a Wait and leaves the session open.
func (p *Poll) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}
