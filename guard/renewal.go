package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// errTooLate means that a lease could not be renewed in time.
var errTooLate = errors.New("it was not renewed in time")

// heldLease is a held lease that a goroutine renews.
type heldLease struct {
	grip
	lease *lease
	stop  context.CancelFunc // ends the renewals
	done  chan struct{}      // closed when they have ended

	mu       sync.Mutex
	until    time.Time // when the lease stops being trusted
	last     error     // of the last renewal; nil if it succeeded
	released bool

	releasing sync.Once
	release   error
}

// hold starts the renewals of a lease that was asked for at start.
func (l *lease) hold(start time.Time, token uint64) *heldLease {
	ctx, stop := context.WithCancel(context.Background())
	h := &heldLease{grip: newGrip(l.name, token), lease: l, stop: stop, done: make(chan struct{})}
	h.trust(start)
	go h.keep(ctx, start)
	return h
}

// trust sets until when the lease is trusted. It counts from the moment before the server was asked, so the server's time
// ends later.
func (h *heldLease) trust(start time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.until, h.last = start.Add(h.lease.ttl-h.lease.margin), nil
}

func (h *heldLease) trusted() time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.until
}

// keep renews the lease until ctx ends or the lease is lost.
func (h *heldLease) keep(ctx context.Context, start time.Time) {
	defer close(h.done)
	waits := notify.Exponential(h.lease.ttl/100, h.lease.ttl/10)
	next := start.Add(h.lease.ttl / 3)
	for server.Pause(ctx, time.Until(next)) == nil {
		until := h.trusted()
		start := time.Now()
		err := h.renewBefore(ctx, until)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil && time.Now().Before(until):
			h.trust(start)
			waits.Reset()
			next = start.Add(h.lease.ttl / 3)
			continue
		case notHolder(err):
			h.lose(err)
			return
		}
		h.mu.Lock()
		h.last = err
		h.mu.Unlock()
		if h.Err() != nil {
			return
		}
		next = time.Now().Add(min(waits.NextBackOff(), time.Until(until)))
	}
}

func (h *heldLease) renewBefore(ctx context.Context, until time.Time) error {
	ctx, cancel := context.WithDeadlineCause(ctx, until, errTooLate)
	defer cancel()
	err := h.lease.renew(ctx, h.token)
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Err compares the clock and does not wait for a timer, so that a process that was stopped learns at once
// that its time is over.
func (h *heldLease) Err() error {
	h.mu.Lock()
	late, last := !h.released && !time.Now().Before(h.until), h.last
	h.mu.Unlock()
	switch {
	case !late:
	case last == nil || errors.Is(last, errTooLate):
		h.lose(errTooLate)
	default:
		h.lose(fmt.Errorf("%w: %w", errTooLate, last))
	}
	return h.grip.Err()
}

func (h *heldLease) Release(ctx context.Context) error {
	h.releasing.Do(func() {
		h.stop()
		<-h.done
		if h.release = h.Err(); h.release != nil {
			return
		}
		h.mu.Lock()
		h.released = true
		h.mu.Unlock()
		// Release the lease even if the caller's context has ended.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), answer)
		defer cancel()
		err := h.lease.release(ctx, h.token, h.trusted())
		if notHolder(err) {
			h.lose(err)
			h.release = h.grip.Err()
			return
		}
		h.release = explain("release", h.name, err)
	})
	return h.release
}
