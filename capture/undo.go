package capture

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/mqnotify/mqnotify/internal/core"
	"github.com/mqnotify/mqnotify/internal/server"
	"github.com/mqnotify/mqnotify/notify"
)

// marked takes a lock with a random name for the session. The lock identifies the session even if another session gets its number
// later.
func marked(ctx context.Context, session *core.Session) (mark string) {
	mark = "mqnotify:capture:" + rand.Text()
	// If the server forbids such locks, as some clusters do, undo does not wait for the session's end.
	_ = execute(ctx, session, "DO GET_LOCK('"+mark+"', 0)")
	return mark
}

// undo drops the triggers that the session has made, because a capture of some of the changes would look like one of all. If unknown is
// set, the next trigger's statement got no answer: it may still run in the server, so undo ends the session first and then drops that
// trigger too.
func (p *Plan) undo(ctx context.Context, session *core.Session, mark string, made int, unknown bool) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(p.options.Patience, undoing))
	defer cancel()
	if unknown {
		made++
		err = p.gone(ctx, session, mark)
	}
	for _, t := range p.triggers[:made] {
		err = errors.Join(err, drop(ctx, p.db, p.Table, t.name, p.options))
	}
	return err
}

// undoing is the least time for undo, even if Patience is shorter.
const undoing = 30 * time.Second

// gone kills the session and returns when the server has ended it.
func (p *Plan) gone(ctx context.Context, session *core.Session, mark string) error {
	_ = session.Close()
	id := strconv.FormatUint(session.ID(), 10)
	waits := notify.Exponential(10*time.Millisecond, time.Second)
	for {
		// After a restart, or behind a load balancer, another session may have the number, but not the mark.
		_, err := p.db.Pool().ExecContext(ctx, "KILL IF(IS_USED_LOCK('"+mark+"') = "+id+", "+id+", 0)")
		switch {
		case server.Is(err, server.ErrNoSuchThread):
			return nil
		case err != nil && !server.ConnectionLost(err) && ctx.Err() == nil:
			return fmt.Errorf("capture: end session %s: %w", id, err)
		}
		select {
		case <-time.After(waits.NextBackOff()):
		case <-ctx.Done():
			return fmt.Errorf("capture: session %s, which makes triggers, did not end: %w", id, errors.Join(err, context.Cause(ctx)))
		}
	}
}
