package core

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"
)

const (
	// sharedSessions is the largest number of sessions that SharedSession opens.
	sharedSessions = 4
	// sharedLimit bounds the time for which a caller of Ask may use a shared session.
	sharedLimit = time.Minute
	// sharedIdle is the IdleTimeout of shared sessions, which hold no locks.
	sharedIdle = 8 * time.Hour
	// sharedLockIdle is the IdleTimeout of the session of SharedLock: how long the server keeps the locks of a host that vanishes.
	sharedLockIdle = 45 * time.Second
)

// shared is a session that several callers use.
type shared struct {
	options SessionOptions
	opening chan struct{} // capacity 1: the caller that fills it may open the session

	mu      sync.Mutex
	users   int
	session *Session
}

func newShared(options SessionOptions) *shared {
	return &shared{options: options, opening: make(chan struct{}, 1)}
}

// sharing has the shared sessions of a DB.
type sharing struct {
	mu      sync.Mutex
	readers [sharedSessions]*shared
	locks   *shared
}

// reader returns the session that has the fewest users, and counts the caller as a user.
func (s *sharing) reader() *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	var least *shared
	fewest := 0
	for i, r := range s.readers {
		if r == nil {
			r = newShared(SessionOptions{IdleTimeout: sharedIdle})
			s.readers[i] = r
		}
		if users := r.count(); least == nil || users < fewest {
			least, fewest = r, users
		}
	}
	least.join()
	return least
}

// locker returns the session of SharedLock, and counts the caller as a user.
func (s *sharing) locker() *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.locks == nil {
		s.locks = newShared(SessionOptions{IdleTimeout: sharedLockIdle})
	}
	s.locks.join()
	return s.locks
}

func (s *shared) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.users
}

func (s *shared) join() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
}

// leave removes a user. After the last one it closes the session.
func (s *shared) leave() {
	s.mu.Lock()
	s.users--
	var last *Session
	if s.users == 0 {
		last, s.session = s.session, nil
	}
	s.mu.Unlock()
	if last != nil {
		_ = last.Close()
	}
}

// open returns the session, and opens it if there is none or if it was lost. The caller must be a user.
func (s *shared) open(ctx context.Context, db *DB) (*Session, error) {
	select {
	case s.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.opening }()
	s.mu.Lock()
	session := s.session
	s.mu.Unlock()
	if session != nil && session.Err() == nil {
		return session, nil
	}
	if session != nil {
		_ = session.Close()
	}
	session, err := NewSession(ctx, db, s.options)
	if err != nil {
		return nil, err
	}
	session.shared = true
	s.mu.Lock()
	s.session = session
	s.mu.Unlock()
	return session, nil
}

// SharedSession returns a session for short statements that leave no state in the session. A DB has at most four of
// them, however many callers there are. The caller runs its statements with Ask, does not close the session, and calls
// release once when it no longer needs the session. The last release closes the session. After a loss every caller gets the
// session's error, and calls SharedSession again.
func SharedSession(ctx context.Context, db *DB) (session *Session, release func(), err error) {
	reader := db.sharing.reader()
	session, err = reader.open(ctx, db)
	if err != nil {
		reader.leave()
		return nil, nil, err
	}
	return session, sync.OnceFunc(reader.leave), nil
}

// SharedLock takes the advisory lock of the name without a wait, on a session that holds the locks of all its callers.
// ErrNotAcquired means that a session holds the lock, perhaps this one. The caller calls release once, which releases
// the lock. If the session is lost, so are the locks of all callers.
func SharedLock(ctx context.Context, db *DB, name string) (lock *Lock, release func() error, err error) {
	locker := db.sharing.locker()
	session, err := locker.open(ctx, db)
	if err == nil {
		// The end of ctx during the statement would lose the locks of all callers. The statement is bounded.
		lock, err = session.TryLock(context.WithoutCancel(ctx), name)
	}
	if errors.Is(err, errHeld) {
		err = ErrNotAcquired
	}
	if err != nil {
		locker.leave()
		return nil, nil, err
	}
	return lock, sync.OnceValue(func() error {
		defer locker.leave()
		err := lock.Release(ctx)
		if errors.Is(err, ErrLockLost) {
			return nil
		}
		return err
	}), nil
}

// Ask runs f with the connection, like Do, on a session that other callers may use. If a context ends during a
// statement, the driver closes the connection, and the other callers would lose their session. The context that f
// gets therefore does not end with ctx, and Ask waits for f: at most a minute, and at most 10 s after the end of
// ctx. A session that takes longer is lost. On a session that is not shared, Ask is Do.
func (s *Session) Ask(ctx context.Context, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	return s.Do(ctx, func(conn *sqlx.Conn) error {
		if !s.shared {
			return f(ctx, conn)
		}
		over, ended := context.WithCancel(context.Background())
		defer ended()
		defer context.AfterFunc(ctx, func() {
			late := time.NewTimer(answer)
			defer late.Stop()
			select {
			case <-late.C:
				s.fail(context.Cause(ctx))
			case <-over.Done():
			}
		})()
		return s.Within(context.WithoutCancel(ctx), sharedLimit, func(ctx context.Context) error { return f(ctx, conn) })
	})
}
