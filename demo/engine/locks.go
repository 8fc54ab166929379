package engine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// locks has the engine's advisory locks. A session may take a lock several times. Waiting sessions get a lock in order.
type locks struct {
	mu   sync.Mutex
	held map[string]*lock // the held locks, by name in lower case
}

type lock struct {
	owner   uint32 // connection id
	count   int    // how often the owner took it
	waiters []*waiter
}

type waiter struct {
	session uint32
	granted chan struct{} // closed by handOver
}

func newLocks() *locks { return &locks{held: make(map[string]*lock)} }

// acquire waits for the lock for at most the timeout, or without a limit if it is negative, and reports whether the session has the lock. It
// fails only if ctx ends.
func (l *locks) acquire(ctx context.Context, session uint32, name string, timeout time.Duration) (bool, error) {
	name = strings.ToLower(name)
	w := l.enqueue(session, name, timeout == 0)
	if w == nil {
		return l.owner(name) == session, nil
	}
	var late <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-w.granted:
		return true, nil
	case <-late:
		return l.abandon(name, w), nil
	case <-ctx.Done():
		if l.abandon(name, w) {
			l.release(session, name)
		}
		return false, context.Cause(ctx)
	}
}

// enqueue takes the lock if no other session has it, and returns nil. Otherwise it returns the session's place in the queue, or nil if try is
// set.
func (l *locks) enqueue(session uint32, name string, try bool) *waiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	held := l.held[name]
	switch {
	case held == nil:
		l.held[name] = &lock{owner: session, count: 1}
		return nil
	case held.owner == session:
		held.count++
		return nil
	case try:
		return nil
	}
	w := &waiter{session: session, granted: make(chan struct{})}
	held.waiters = append(held.waiters, w)
	return w
}

// abandon leaves the queue. It reports whether the session got the lock just before.
func (l *locks) abandon(name string, w *waiter) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-w.granted:
		return true
	default:
	}
	held := l.held[name]
	held.waiters = slices.DeleteFunc(held.waiters, func(other *waiter) bool { return other == w })
	return false
}

// release reduces the lock's count by one. It reports whether a session held the lock, and whether it was this one.
func (l *locks) release(session uint32, name string) (held, ours bool) {
	name = strings.ToLower(name)
	l.mu.Lock()
	defer l.mu.Unlock()
	switch lock := l.held[name]; {
	case lock == nil:
		return false, false
	case lock.owner != session:
		return true, false
	default:
		if lock.count--; lock.count == 0 {
			l.handOver(name, lock)
		}
		return true, true
	}
}

// releaseAll releases all locks of the session, and returns the sum of their counts.
func (l *locks) releaseAll(session uint32) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	released := 0
	for name, lock := range l.held {
		if lock.owner == session {
			released += lock.count
			l.handOver(name, lock)
		}
	}
	return released
}

// handOver gives the lock to the first waiter, or removes it. The new owner has the lock at once, before its goroutine runs, so that no other
// session can take it in between.
func (l *locks) handOver(name string, lock *lock) {
	if len(lock.waiters) == 0 {
		delete(l.held, name)
		return
	}
	first := lock.waiters[0]
	lock.owner, lock.count, lock.waiters = first.session, 1, lock.waiters[1:]
	close(first.granted)
}

// owner returns the connection id of the lock's holder, or 0.
func (l *locks) owner(name string) uint32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	if lock := l.held[strings.ToLower(name)]; lock != nil {
		return lock.owner
	}
	return 0
}
