package core

import (
	"context"
	"errors"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// HandshakeName is the name of the lock on which a topic's producer and consumer
// alternate.
func HandshakeName(database, topic string) string {
	return LockName("handshake", database, topic)
}

// Handshake is the consumer's side of the protocol as published in 2007: one
// producer and one consumer alternate on one lock. The producer holds the lock
// while time passes, inserts, lets it go and takes it again at once, which makes
// it wait for the consumer; the consumer, woken by the release, reads and
// processes while it holds the lock. So the lock is held from one Wait to the
// next, and the caller must be done with what it read before it waits again.
//
// A consumer that has the lock and finds nothing, since its producer is dead or
// not there yet, keeps the lock while it sleeps: nothing can be inserted unseen,
// and a producer that comes gets its turn at the sleep's end.
type Handshake struct {
	session *Session
	name    string
	source  Source
	waits   backoff.BackOff
	lock    *Lock
}

var _ Waiter = (*Handshake)(nil)

// NewHandshake is the consumer's side on the lock of the name; the session
// becomes the waiter's and is closed with it. waits is how long it sleeps while
// there is no producer, which is also how long a producer that comes may wait.
func NewHandshake(session *Session, name string, source Source, waits backoff.BackOff) *Handshake {
	return &Handshake{session: session, name: name, source: source, waits: waits}
}

// Head implements [Waiter].
func (h *Handshake) Head(ctx context.Context) (Head, error) {
	return h.source.read(ctx, h.session)
}

// Wait implements [Waiter], but for a bound of less than a second, while the producer has
// the lock: the server counts in seconds.
func (h *Handshake) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	deadline := time.Now().Add(bound)
	for {
		err := h.pass(ctx, time.Until(deadline))
		if errors.Is(err, ErrNotAcquired) { // the producer lives and has nothing to say
			if time.Now().Before(deadline) {
				continue
			}
			return seen, nil
		}
		if err != nil {
			return seen, err
		}
		head, err := h.source.read(ctx, h.session)
		if err != nil {
			return seen, err
		}
		if h.source.changed(head, seen) {
			h.waits.Reset()
			return head, nil
		}
		if err := sleep(ctx, h.session, nil, h.waits, time.Until(deadline)); err != nil {
			return seen, err
		}
		if !time.Now().Before(deadline) {
			return head, nil
		}
	}
}

// turn gives the producer its turn and returns when it is the consumer's again.
func (h *Handshake) pass(ctx context.Context, timeout time.Duration) error {
	timeout = max(time.Second, min(timeout, 30*time.Second))
	if h.lock != nil {
		_, err := h.lock.Pass(ctx, timeout)
		if errors.Is(err, ErrNotAcquired) {
			h.lock = nil
		}
		return err
	}
	lock, err := h.session.Lock(ctx, h.name, timeout)
	if err != nil {
		return err
	}
	h.lock = lock
	return nil
}

// Close implements [Waiter]: it closes the session, and so lets the lock go.
func (h *Handshake) Close() error { return h.session.Close() }
