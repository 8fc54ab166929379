package core

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// longest is the longest wait for a lock; a longer one would overflow a number.
const longest = 365 * 24 * time.Hour

// Lock is an advisory lock (GET_LOCK) that a session holds. It ends with the session, if not before. Safe for concurrent use.
type Lock struct {
	session *Session
	name    string
	*Loss
}

// Lock waits until the session holds the advisory lock of the name, at most for timeout, which is rounded up to whole seconds because
// the server counts in seconds; 0 or less means one attempt that does not wait. ErrNotAcquired means that another session still holds
// the lock. The session must not hold the name already.
//
// Names come from [LockName]. If ctx ends during the wait, the driver closes the connection and the session is lost. A session that
// holds other locks must check them in between. It therefore waits for a third of IdleTimeout at a time, and each time it
// goes to the end of the queue.
func (s *Session) Lock(ctx context.Context, name string, timeout time.Duration) (*Lock, error) {
	if err := checkLockName(name); err != nil {
		return nil, err
	}
	lock := &Lock{session: s, name: name, Loss: NewLoss()}
	if err := s.acquire(ctx, lock, timeout); err != nil {
		return nil, fmt.Errorf("notify: lock %s: %w", name, err)
	}
	return lock, nil
}

// TryLock is Lock without a wait.
func (s *Session) TryLock(ctx context.Context, name string) (*Lock, error) {
	return s.Lock(ctx, name, 0)
}

// acquire asks for the lock, which the session does not hold, until it is granted or timeout has passed.
func (s *Session) acquire(ctx context.Context, lock *Lock, timeout time.Duration) error {
	return await(timeout, func(timeout time.Duration) error {
		return s.ask(ctx, timeout+answer, func(ctx context.Context, conn *sqlx.Conn) error {
			s.mu.Lock()
			_, held := s.locks[lock.name]
			s.mu.Unlock()
			if held { // the server would count it twice, and one release would not free it
				return errHeld
			}
			return s.get(ctx, conn, lock, timeout, "")
		})
	})
}

// await calls ask until the lock is granted, an error occurs, or timeout has passed.
func await(timeout time.Duration, ask func(timeout time.Duration) error) error {
	timeout = min(max(0, timeout), longest)
	for deadline := time.Now().Add(timeout); ; timeout = time.Until(deadline) {
		if err := ask(timeout); !errors.Is(err, ErrNotAcquired) || !time.Now().Before(deadline) {
			return err
		}
	}
}

var (
	errNull = errors.New("the server gave up the wait (a kill, a statement timeout, or an error)")
	errHeld = errors.New("the session already holds it")
)

// get asks for the lock once, and records it when it is granted. The statement first reads the columns, each of which takes the
// lock's name. The caller holds the permit.
func (s *Session) get(ctx context.Context, conn *sqlx.Conn, lock *Lock, timeout time.Duration, columns string, into ...any) error {
	args := []any{lock.name, seconds(s.slice(timeout))}
	for range into {
		args = append([]any{lock.name}, args...)
	}
	var granted sql.NullInt64
	start := time.Now()
	err := conn.QueryRowxContext(ctx, "SELECT "+columns+"GET_LOCK(?, ?)", args...).Scan(append(into, &granted)...)
	if err == nil {
		err = grant(granted)
	}
	if err == nil && time.Since(start) > s.idle/6 {
		// The answer may be as old as the statement, and the session may have ended since.
		start = time.Now()
		var held []bool
		if held, err = owned(ctx, conn, lock.name); err == nil && !held[0] {
			err = errNotOurs
		}
	}
	switch {
	case err == nil:
		return s.hold(lock, start)
	case errors.Is(err, ErrNotAcquired) || !server.Sound(s.conn):
		return err
	}
	// If the wait was killed just as the server granted the lock, the session would hold a lock that it does not know of.
	var released sql.NullInt64
	if err := conn.QueryRowxContext(ctx, "SELECT RELEASE_LOCK(?)", lock.name).Scan(&released); err != nil {
		s.fail(err)
	}
	return err
}

// grant interprets GET_LOCK's answer: only 1 is a grant.
func grant(answer sql.NullInt64) error {
	switch {
	case !answer.Valid:
		return errNull
	case answer.Int64 == 1:
		return nil
	default:
		return ErrNotAcquired
	}
}

// slice returns how long a session with locks may wait at a time, because it can't check its locks during the wait.
func (s *Session) slice(timeout time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.locks) == 0 {
		return timeout
	}
	return min(timeout, (s.idle / 3).Truncate(time.Second))
}

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// hold records a lock that the session held at the time start.
func (s *Session) hold(lock *Lock, start time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return s.cause
	}
	if len(s.locks) == 0 { // with other locks, checked is the time at which those were checked
		s.checked = start
	}
	s.locks[lock.name] = lock
	return nil
}

// drop removes a lock, and reports whether the session held it.
func (s *Session) drop(lock *Lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[lock.name] != lock {
		return false
	}
	delete(s.locks, lock.name)
	return true
}

// lose marks the lock as lost.
func (l *Lock) lose(cause error) {
	l.Lose(fmt.Errorf("notify: lock %s: %w: %w", l.name, ErrLockLost, cause))
}

// Name returns the lock's name on the server.
func (l *Lock) Name() string { return l.name }

// Held asks the server whether the session still holds the lock. If the answer is no, the lock counts as lost.
func (l *Lock) Held(ctx context.Context) (bool, error) {
	select {
	case <-l.lost:
		return false, nil
	default:
	}
	var held bool
	err := l.session.ask(ctx, answer, func(ctx context.Context, conn *sqlx.Conn) error {
		answers, err := owned(ctx, conn, l.name)
		if err != nil {
			return err
		}
		held = answers[0]
		if !held && l.session.drop(l) {
			l.lose(errNotOurs)
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("notify: ask for lock %s: %w", l.name, err)
	}
	return held, nil
}

// Release releases the lock, after a statement that is running. ErrLockLost means that the session no longer held it. Any other
// error also closes the session, so that the lock is free in any case.
func (l *Lock) Release(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	// A caller whose context has ended still wants the lock released, and an interrupted statement would close the session.
	err := l.session.ask(context.WithoutCancel(ctx), answer, func(ctx context.Context, conn *sqlx.Conn) error {
		if !l.session.drop(l) {
			return nil // released before
		}
		var released sql.NullInt64
		if err := conn.QueryRowxContext(ctx, "SELECT RELEASE_LOCK(?)", l.name).Scan(&released); err != nil {
			return err
		}
		if released.Int64 != 1 {
			l.lose(errNotOurs)
		}
		return nil
	})
	if lost := l.Err(); lost != nil {
		return lost
	}
	if err != nil {
		l.session.fail(err)
		return fmt.Errorf("notify: release %s: %w", l.name, err)
	}
	return nil
}

// Pass releases the lock and takes it again in one statement. The sessions that wait for it hold it in between, because the server
// hands a lock to its waiters in the order in which they came. taken is false if no session waited: then the release woke none, and
// a session that begins to wait a moment later has missed it. taken is also false if all waiters had released the lock before the
// statement read the holder.
//
// ErrNotAcquired means that another session still holds the lock after timeout and this
// session does not. ErrLockLost means that this session did not hold the lock before, or
// lost it in between, for example because ctx ended.
func (l *Lock) Pass(ctx context.Context, timeout time.Duration) (taken bool, err error) {
	if err := l.Err(); err != nil {
		return false, err
	}
	s, released := l.session, false
	err = await(timeout, func(timeout time.Duration) error {
		return s.ask(ctx, timeout+answer, func(ctx context.Context, conn *sqlx.Conn) error {
			if released {
				return s.get(ctx, conn, l, timeout, "")
			}
			if !s.drop(l) {
				return ErrLockLost
			}
			released = true
			var was, holder sql.NullInt64
			// The server has handed the lock over when RELEASE_LOCK returns, so IS_USED_LOCK finds the next holder, unless
			// on a busy machine all waiters hold and release it before.
			err := s.get(ctx, conn, l, timeout, "RELEASE_LOCK(?), IS_USED_LOCK(?), ", &was, &holder)
			taken = holder.Valid
			if was.Int64 != 1 && (err == nil || errors.Is(err, ErrNotAcquired)) {
				s.fail(errNotOurs) // another session may have held it before this call
				return errNotOurs
			}
			return err
		})
	})
	switch {
	case err == nil:
		return taken, nil
	case released && !errors.Is(err, ErrNotAcquired):
		l.lose(err)
		return false, l.Err()
	}
	return false, fmt.Errorf("notify: pass %s on: %w", l.name, err)
}
