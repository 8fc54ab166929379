package notify

import (
	"context"
	"strconv"
	"time"
)

// interrupting bounds the attempts to end a statement over the pool. Tests have more of it: a
// wait that was cut off instead is left on the server.
var interrupting = 500 * time.Millisecond

// interrupt ends the statement that the session runs, with KILL QUERY over the pool,
// which an account may do to its own sessions. It takes 500 ms at most: what it could
// not end is cut off by the caller.
func (db *DB) interrupt(session *Session) error {
	id := strconv.FormatUint(session.ID(), 10)
	var args []any
	if server := session.Capabilities().ServerUUID; server != "" {
		// Behind a balancer the pool may be on another server, where a stranger has the
		// number. Nobody has 0.
		id, args = "IF(@@server_uuid = ?, "+id+", 0)", []any{server}
	}
	ctx, cancel := context.WithTimeout(context.Background(), interrupting)
	defer cancel()
	_, err := db.pool.ExecContext(ctx, "KILL QUERY "+id, args...)
	return err
}

// endWith ends what a session waits for when ctx ends: interrupted, it leaves no
// wait behind on the server, as a connection that is cut off does for a while. The
// caller calls stop when done with waiting.
func (db *DB) endWith(ctx context.Context, session *Session) (stop func()) {
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		session.end(ErrSessionClosed) // no statement begins after the one under way
		deadline := time.Now().Add(interrupting)
		// Once more after a moment: it may have come before the statement.
		for time.Now().Before(deadline) {
			if db.interrupt(session) != nil || session.rests(10*time.Millisecond) {
				break
			}
		}
		_ = session.Close()
	})
	return func() {
		if !cancel() {
			<-ended
		}
	}
}

// rests tells whether no statement of the session is under way within most.
func (s *Session) rests(most time.Duration) bool {
	s.quiet.enter()
	defer s.quiet.leave()
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case s.turn <- struct{}{}:
		<-s.turn
		return true
	case <-timer.C:
		return false
	}
}
