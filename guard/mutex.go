package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/mqnotify/mqnotify/notify"
)

// Mutex is a lock that one holds at a time, of all machines: Advisory, Row, Flag or
// Lease. Implementations are safe for concurrent use, know no owner by goroutine or
// process, and can't be taken twice by the same one.
type Mutex interface {
	// TryLock takes the lock if it is free. notify.ErrNotAcquired says that it is not.
	TryLock(ctx context.Context) (Held, error)
	// Lock waits for the lock until ctx ends; the error then has the cause of ctx, and
	// notify.ErrNotAcquired if another holder had the lock, or the error that kept it from asking.
	Lock(ctx context.Context) (Held, error)
}

// Held is a lock that was got. Its methods may be called at the same time. The
// caller releases it.
type Held interface {
	// Name is that of the mutex.
	Name() string
	// Token is the fencing token: larger than that of every holder before. A resource
	// that remembers the largest it has seen, and refuses smaller ones, is safe from a
	// holder that does not know yet that it is one no more. 0 is none: an advisory
	// lock and a row have no token.
	Token() uint64
	// Lost is closed when the lock is lost, not when it is released.
	Lost() <-chan struct{}
	// Err is notify.ErrLockLost with its reason once the lock is lost, nil before.
	Err() error
	// Context returns a copy of parent that is cancelled, with notify.ErrLockLost in its
	// cause, when the lock is lost. The caller calls cancel when done with it.
	Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc)
	// Release lets the lock go, even if ctx has ended. notify.ErrLockLost says that it was not
	// held any more: another holder may have worked at the same time. Release may be
	// called twice.
	Release(ctx context.Context) error
}

// With runs f while the lock is held, with a context that ends when it is lost, and
// releases it. The error is f's, or that the lock was not got, or was lost.
func With(ctx context.Context, m Mutex, f func(ctx context.Context) error) error {
	held, err := m.Lock(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = held.Release(ctx) }() // if f panics
	working, cancel := held.Context(ctx)
	defer cancel()
	err = f(working)
	return errors.Join(err, held.Release(ctx))
}

// persist tries until the lock is got, something fails, or ctx ends. The waits grow
// from 5 to 250 ms, and half of each is random, so that callers do not try all at
// once. There is no queue: any of them may get the lock first.
func persist(ctx context.Context, try func(ctx context.Context) (Held, error)) (Held, error) {
	waits := &notify.Fibonacci{Min: 5 * time.Millisecond, Max: 250 * time.Millisecond, Jitter: 0.5}
	var refused error
	for {
		held, err := try(ctx)
		switch {
		case errors.Is(err, notify.ErrNotAcquired):
			refused = err
		case err == nil || ctx.Err() == nil || refused == nil || errors.Is(err, errAfter):
			return held, err
		}
		if cause := pause(ctx, waits.NextBackOff()); cause != nil {
			return nil, fmt.Errorf("%w: %w", refused, cause)
		}
	}
}

// grip is what every Held in a table has.
type grip struct {
	name  string
	token uint64
	once  sync.Once
	lost  chan struct{}
	cause error
}

func newGrip(name string, token uint64) grip {
	return grip{name: name, token: token, lost: make(chan struct{})}
}

func (g *grip) Name() string          { return g.name }
func (g *grip) Token() uint64         { return g.token }
func (g *grip) Lost() <-chan struct{} { return g.lost }

func (g *grip) Err() error {
	select {
	case <-g.lost:
		return g.cause
	default:
		return nil
	}
}

// lose tells everybody that the lock is gone.
func (g *grip) lose(cause error) {
	g.once.Do(func() {
		g.cause = fmt.Errorf("guard: lock %q: %w: %w", g.name, notify.ErrLockLost, cause)
		close(g.lost)
	})
}

func (g *grip) Context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancelCause := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-g.lost:
			cancelCause(g.cause)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancelCause(context.Canceled)
		<-done
	}
}
