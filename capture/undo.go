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

// marked gives the session a lock of its own. The lock shows that the server still has the
// session, even if another session gets its number later.
func marked(ctx context.Context, session *core.Session) (mark string) {
	mark = "mqnotify:capture:" + rand.Text()
	// A server that has no such locks (a cluster that forbids them) does without.
	_ = execute(ctx, session, "DO GET_LOCK('"+mark+"', 0)")
	return mark
}

// undo drops the triggers that the session has made: a capture of half the changes would be
// taken for one of all. The one after them may be made too, or yet be made, if it is unknown: a
// statement without an answer goes on in the server.
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

// undoing is how long an undo may take at least, however impatient the caller is.
const undoing = 30 * time.Second

// gone returns when the server has ended the session, which it is made to do.
func (p *Plan) gone(ctx context.Context, session *core.Session, mark string) error {
	_ = session.Close()
	id := strconv.FormatUint(session.ID(), 10)
	waits := notify.Exponential(10*time.Millisecond, time.Second)
	for {
		// After a restart, or behind a balancer, a stranger may have the number, but not the mark.
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
