package core

import (
	"context"
	"sync"
)

// Loss records whether a lock is lost, and why. Safe for concurrent use.
type Loss struct {
	once  sync.Once
	lost  chan struct{}
	cause error
}

// NewLoss returns the Loss of a lock that is held.
func NewLoss() *Loss { return &Loss{lost: make(chan struct{})} }

// Lose marks the lock as lost. The cause of the first call counts.
func (l *Loss) Lose(cause error) {
	l.once.Do(func() {
		l.cause = cause
		close(l.lost)
	})
}

// Lost returns a channel that is closed when the lock is lost, but not when it is released.
func (l *Loss) Lost() <-chan struct{} { return l.lost }

// Err returns ErrLockLost with its reason when the lock is lost, and nil before.
func (l *Loss) Err() error {
	select {
	case <-l.lost:
		return l.cause
	default:
		return nil
	}
}

// Context returns a copy of parent that is cancelled, with ErrLockLost in its cause, when the lock is lost. The caller must call
// cancel when it no longer needs the context.
func (l *Loss) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, cancelCause := context.WithCancelCause(parent)
	done := make(chan struct{})
	go func() {
		defer close(done)
		select {
		case <-l.lost:
			cancelCause(l.cause)
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		cancelCause(context.Canceled)
		<-done
	}
}
