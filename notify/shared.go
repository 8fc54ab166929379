package notify

import (
	"context"
	"sync"
)

// sharedSession is a session for short statements of several users, who take turns.
// It is opened when it is needed, anew when it was lost, and closed with its last
// user.
type sharedSession struct {
	mu      sync.Mutex
	users   int
	session *Session
}

func (s *sharedSession) join() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users++
}

// leave is called once for each join.
func (s *sharedSession) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users--; s.users == 0 && s.session != nil {
		_ = s.session.Close()
		s.session = nil
	}
}

// get is the session; the caller has joined.
func (s *sharedSession) get(ctx context.Context, db *DB) (*Session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.session != nil && s.session.Err() == nil {
		return s.session, nil
	}
	if s.session != nil {
		_ = s.session.Close()
		s.session = nil
	}
	session, err := db.Session(ctx, SessionOptions{IdleTimeout: untouched})
	if err != nil {
		return nil, err
	}
	s.session = session
	return session, nil
}
