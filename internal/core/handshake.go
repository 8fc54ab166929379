package core

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v4"
)

// HandshakeName returns the name of the lock on which a topic's producer and consumer alternate.
func HandshakeName(database, topic string) string {
	return LockName("handshake", database, topic)
}

// Handshake is the consumer's side of a protocol published in 2007: one producer and one consumer alternate on one lock. The
// producer holds the lock while it has nothing to insert. After an insert it releases the lock and asks for it again at once,
// and so waits for the consumer. The release wakes the consumer, which reads and processes while it holds the lock. A Handshake
// therefore holds the lock from one Wait to the next, and the caller must have processed what it read before it waits again.
//
// If a consumer gets the lock and finds nothing, its producer is dead or has not started. It keeps the lock while it sleeps, so that
// no row can be inserted unnoticed. A producer that starts gets its turn at the end of the sleep.
type Handshake struct {
	session *Session
	name    string
	source  Source
	waits   backoff.BackOff
	lock    *Lock
}

var _ Waiter = (*Handshake)(nil)

// errSeveralServers means that the two sides of a handshake might hold locks of different servers.
var errSeveralServers = fmt.Errorf("%w: the mode \"handshake\" on one of several servers that take writes, each of which has locks of its own: use \"auto\"", ErrOptions)

// NewHandshakeSession connects a session for one side of a handshake. It returns ErrOptions if other servers take writes, too.
func NewHandshakeSession(ctx context.Context, db *DB) (*Session, error) {
	session, err := NewSession(ctx, db, SessionOptions{})
	if err != nil {
		return nil, err
	}
	switch caps := session.Capabilities(); {
	case caps.ReadOnly && !caps.Galera && !caps.MultiPrimary:
		err = fmt.Errorf("%w: connect to the primary", ErrReadOnly)
	case caps.WritersElsewhere():
		err = errSeveralServers
	default:
		return session, nil
	}
	_ = session.Close()
	return nil, err
}

// NewHandshake returns the consumer's side on the lock of the name. The session becomes the waiter's and is closed with it. waits
// are the sleeps while there is no producer, and so also the longest time that a starting producer waits.
func NewHandshake(session *Session, name string, source Source, waits backoff.BackOff) *Handshake {
	return &Handshake{session: session, name: name, source: source, waits: waits}
}

// Head implements [Waiter].
func (h *Handshake) Head(ctx context.Context) (Head, error) {
	return h.source.read(ctx, h.session)
}

// Wait implements [Waiter], except that a bound of less than a second lasts a second while the producer has the lock, because the
// server counts in seconds.
func (h *Handshake) Wait(ctx context.Context, seen Head, bound time.Duration) (Head, error) {
	deadline := time.Now().Add(bound)
	for {
		err := h.pass(ctx, time.Until(deadline))
		if errors.Is(err, ErrNotAcquired) { // the producer lives and has nothing to insert
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

// pass gives the producer its turn and returns when it is the consumer's again.
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

// Close implements [Waiter]: it closes the session, which releases the lock.
func (h *Handshake) Close() error { return h.session.Close() }
