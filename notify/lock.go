package notify

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

var (
	// ErrNotAcquired is returned when a lock's timeout passed and another session
	// still holds it.
	ErrNotAcquired = errors.New("the lock is held by another session")
	// ErrLockLost is returned, and is the cause of a context given by
	// Lock.Context, when the session no longer holds the lock.
	ErrLockLost = errors.New("the lock was lost")

	errNotOurs = errors.New("the server says that it is not this session's any more")
)

// answer is how long a statement that does not wait may take before its
// connection counts as lost.
const answer = 10 * time.Second

// Lock is an advisory lock (GET_LOCK) that a session holds. It is lost with the
// session, at the latest. Safe for concurrent use.
type Lock struct {
	session *Session
	name    string
	once    sync.Once
	lost    chan struct{}
	cause   error
}

// Lock waits until the session holds the advisory lock of the name, for at most
// timeout (rounded up to whole seconds, as MySQL counts; 0 or less: a try that
// does not wait). ErrNotAcquired says that another session holds it still. The
// session must not hold the name already.
//
// Names come from [LockName]. A context that ends in the middle of the wait costs
// the session, whose connection is then closed.
func (s *Session) Lock(ctx context.Context, name string, timeout time.Duration) (*Lock, error) {
	if err := checkLockName(name); err != nil {
		return nil, err
	}
	timeout = max(0, timeout)
	s.mu.Lock()
	_, held := s.locks[name]
	s.mu.Unlock()
	if held { // the server would count it twice, and a release would free it once
		return nil, fmt.Errorf("notify: lock %s: the session holds it already", name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeout+answer, errNoAnswer)
	defer cancel()
	lock := &Lock{session: s, name: name, lost: make(chan struct{})}
	err := s.Do(ctx, func(conn *sqlx.Conn) error {
		var granted sql.NullInt64
		if err := conn.QueryRowxContext(ctx, "SELECT GET_LOCK(?, ?)", name, seconds(timeout)).Scan(&granted); err != nil {
			return err
		}
		if err := grant(granted); err != nil {
			return err
		}
		s.hold(lock)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("notify: lock %s: %w", name, err)
	}
	return lock, nil
}

// TryLock is Lock without a wait.
func (s *Session) TryLock(ctx context.Context, name string) (*Lock, error) {
	return s.Lock(ctx, name, 0)
}

var (
	errNoAnswer = errors.New("the server did not answer in time")
	errNull     = errors.New("the server gave up the wait (a kill, a statement timeout, or an error)")
)

// grant reads GET_LOCK's answer: only 1 is a grant.
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

func seconds(d time.Duration) int64 { return int64(math.Ceil(d.Seconds())) }

// hold notes a lock that was granted just now, and sees to it that it is kept.
func (s *Session) hold(lock *Lock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		lock.lose(s.cause)
		return
	}
	s.locks[lock.name] = lock
	if !s.keeping {
		s.keeping = true
		s.kept.Add(1)
		go s.keep()
	}
}

// drop forgets a lock, and tells whether it was held.
func (s *Session) drop(lock *Lock) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks[lock.name] != lock {
		return false
	}
	delete(s.locks, lock.name)
	return true
}

// lose tells everybody that the lock is gone.
func (l *Lock) lose(cause error) {
	l.once.Do(func() {
		l.cause = fmt.Errorf("notify: lock %s: %w: %w", l.name, ErrLockLost, cause)
		close(l.lost)
	})
}

// Name is the lock's name on the server.
func (l *Lock) Name() string { return l.name }

// Lost is closed when the lock is lost, not when it is released.
func (l *Lock) Lost() <-chan struct{} { return l.lost }

// Err is ErrLockLost with its reason once the lock is lost, nil before.
func (l *Lock) Err() error {
	select {
	case <-l.lost:
		return l.cause
	default:
		return nil
	}
}

// Context returns a copy of parent that is cancelled, with ErrLockLost in its
// cause, when the lock is lost. The caller calls cancel when done with it.
func (l *Lock) Context(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
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

// Held asks the server whether the session still holds the lock. An answer of no
// makes the lock count as lost.
func (l *Lock) Held(ctx context.Context) (bool, error) {
	if l.Err() != nil {
		return false, nil
	}
	var held bool
	err := l.session.Do(ctx, func(conn *sqlx.Conn) error {
		return conn.QueryRowxContext(ctx, "SELECT IS_USED_LOCK(?) <=> CONNECTION_ID()", l.name).Scan(&held)
	})
	if err != nil {
		return false, fmt.Errorf("notify: ask for lock %s: %w", l.name, err)
	}
	if !held && l.session.drop(l) {
		l.lose(errNotOurs)
	}
	return held, nil
}

// Release lets the lock go. ErrLockLost says that it was not held any more.
func (l *Lock) Release(ctx context.Context) error {
	if err := l.Err(); err != nil {
		return err
	}
	// Dropped first: a touch in between must not take the release for a loss.
	if !l.session.drop(l) {
		return nil // released before
	}
	// A caller on its way out still wants the lock released, and an interrupted
	// statement would cost the session.
	ctx, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), answer, errNoAnswer)
	defer cancel()
	var released sql.NullInt64
	err := l.session.Do(ctx, func(conn *sqlx.Conn) error {
		return conn.QueryRowxContext(ctx, "SELECT RELEASE_LOCK(?)", l.name).Scan(&released)
	})
	if err != nil {
		return fmt.Errorf("notify: release %s: %w", l.name, err)
	}
	if released.Int64 != 1 {
		l.lose(errNotOurs)
		return l.cause
	}
	return nil
}

// Turn lets the lock go and takes it again in one statement. Whoever waits for
// it has it in between: the server hands a lock to its waiters in the order they
// came. taken is false when nobody waited: the release woke nobody, and whoever
// comes to wait an instant later has missed it. ErrNotAcquired says that after
// timeout another session holds the lock, and this one does not any more;
// ErrLockLost that it was not held before.
func (l *Lock) Turn(ctx context.Context, timeout time.Duration) (taken bool, err error) {
	if err := l.Err(); err != nil {
		return false, err
	}
	if !l.session.drop(l) {
		return false, fmt.Errorf("notify: turn %s: %w", l.name, ErrLockLost)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, max(0, timeout)+answer, errNoAnswer)
	defer cancel()
	err = l.session.Do(ctx, func(conn *sqlx.Conn) error {
		var released, holder, granted sql.NullInt64
		// The server hands the lock over as it is released, so its holder is known here.
		err := conn.QueryRowxContext(ctx, "SELECT RELEASE_LOCK(?), IS_USED_LOCK(?), GET_LOCK(?, ?)",
			l.name, l.name, l.name, seconds(timeout)).Scan(&released, &holder, &granted)
		if err != nil {
			return err
		}
		taken = holder.Valid
		if err := grant(granted); err != nil {
			return err
		}
		l.session.hold(l)
		if released.Int64 != 1 { // somebody may have had it before this turn
			l.session.fail(errNotOurs)
			return l.cause
		}
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("notify: turn %s: %w", l.name, err)
	}
	return taken, nil
}
