package core

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
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

// sharing has the shared sessions of a DB.
type sharing struct {
	mu      sync.Mutex
	readers [sharedSessions]shared
	locks   [1]shared
}

// shared is a session that several callers use.
type shared struct {
	opening chan struct{} // capacity 1: the caller that fills it may open the session
	users   int
	session *Session
}

// join returns the session that has the fewest users, and counts the caller as a user.
func (s *sharing) join(sessions []shared) *shared {
	s.mu.Lock()
	defer s.mu.Unlock()
	least := &sessions[0]
	for i := range sessions {
		if sessions[i].users < least.users {
			least = &sessions[i]
		}
	}
	if least.opening == nil {
		least.opening = make(chan struct{}, 1)
	}
	least.users++
	return least
}

// leave removes a user. After the last one it closes the session.
func (s *sharing) leave(of *shared) {
	s.mu.Lock()
	of.users--
	var last *Session
	if of.users == 0 {
		last, of.session = of.session, nil
	}
	s.mu.Unlock()
	if last != nil {
		_ = last.Close()
	}
}

// open returns the session, and opens it if there is none or if it was lost. The caller must be a user.
func (s *sharing) open(ctx context.Context, db *DB, of *shared, idle time.Duration) (*Session, error) {
	select {
	case of.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-of.opening }()
	s.mu.Lock()
	session := of.session
	s.mu.Unlock()
	if session != nil && session.Err() == nil {
		return session, nil
	}
	if session != nil {
		_ = session.Close()
	}
	session, err := NewSession(ctx, db, SessionOptions{IdleTimeout: idle, Limit: sharedLimit})
	if err != nil {
		return nil, err
	}
	session.shared = true
	s.mu.Lock()
	of.session = session
	s.mu.Unlock()
	return session, nil
}

// SharedSession returns a session for short statements that leave no state in the session. A DB has at most four of
// them, however many callers there are. The caller runs its statements with Ask, does not close the session, and calls
// release once when it no longer needs the session. The last release closes the session. After a loss every caller gets the
// session's error, and calls SharedSession again.
func SharedSession(ctx context.Context, db *DB) (session *Session, release func(), err error) {
	reader := db.sharing.join(db.sharing.readers[:])
	leave := sync.OnceFunc(func() { db.sharing.leave(reader) })
	session, err = db.sharing.open(ctx, db, reader, sharedIdle)
	if err != nil {
		leave()
		return nil, nil, err
	}
	return session, leave, nil
}

// SharedLock takes the advisory lock of the name without a wait, on a session that holds the locks of all its callers.
// ErrNotAcquired means that a session holds the lock, perhaps this one. The caller calls release once, which releases
// the lock. If the session is lost, so are the locks of all callers.
func SharedLock(ctx context.Context, db *DB, name string) (lock *Lock, release func() error, err error) {
	locker := db.sharing.join(db.sharing.locks[:])
	session, err := db.sharing.open(ctx, db, locker, sharedLockIdle)
	if err == nil {
		// The end of ctx during the statement would lose the locks of all callers. The statement is bounded.
		lock, err = session.TryLock(context.WithoutCancel(ctx), name)
	}
	if errors.Is(err, errHeld) {
		err = ErrNotAcquired
	}
	if err != nil {
		db.sharing.leave(locker)
		return nil, nil, err
	}
	return lock, sync.OnceValue(func() error {
		defer db.sharing.leave(locker)
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
// ctx. A session that takes longer is lost. On a session that is not shared, Ask is Do with the session's Limit.
func (s *Session) Ask(ctx context.Context, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	return s.Do(ctx, func(conn *sqlx.Conn) error {
		if s.limit == 0 {
			return f(ctx, conn)
		}
		asking, release := ctx, func() {}
		if s.shared {
			asking, release = server.Linger(ctx, answer)
		}
		defer release()
		return s.Within(asking, s.limit, func(ctx context.Context) error { return f(ctx, conn) })
	})
}
