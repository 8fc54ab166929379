package notify

import (
	"context"
	"strconv"
	"time"
)

// interrupt ends the statement of a session, over the pool. An account may do so
// with its own sessions. What it can't end is cut off by whoever calls it.
func (db *DB) interrupt(id uint64) {
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	_, _ = db.pool.ExecContext(ctx, "KILL QUERY "+strconv.FormatUint(id, 10)) // takes no parameter
}

// endWith ends what a session waits for when ctx ends: interrupted, it leaves no
// wait behind on the server, as a connection that is cut off does for a while. The
// caller calls stop when done with waiting.
func (db *DB) endWith(ctx context.Context, session *Session) (stop func()) {
	ended := make(chan struct{})
	cancel := context.AfterFunc(ctx, func() {
		defer close(ended)
		db.interrupt(session.ID())
		_ = session.Close()
	})
	return func() {
		if !cancel() {
			<-ended
		}
	}
}
