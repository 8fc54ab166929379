package waiting

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/mqnotify/mqnotify/internal/server"
)

// Unused is how long the helper stays connected while nothing needs it. Tests make it shorter before they connect.
var Unused = time.Minute

var errLost = errors.New("the connection was lost")

// helper is the session of a process for short statements that the other sessions can't send: reads of committed heads, and KILLs of
// waits. It connects when it is needed. Safe for concurrent use.
type helper struct {
	config *mysql.Config

	permit  chan struct{} // capacity 1: its holder may use the fields below
	session *session
	lost    *session // its last statement took too long, and may still run
	used    time.Time

	idle    *time.Timer
	opening sync.WaitGroup
}

func newHelper(config *mysql.Config) *helper {
	h := &helper{config: config, permit: make(chan struct{}, 1)}
	h.idle = time.AfterFunc(Unused, h.rest)
	return h
}

// rest ends the session if nothing has used it for a while.
func (h *helper) rest() {
	select {
	case h.permit <- struct{}{}:
		if time.Since(h.used) >= Unused {
			h.disconnect()
		}
		<-h.permit
	default: // it is in use; the user sets the timer again
	}
}

// with calls f with the session, and connects if that is needed. The end of ctx interrupts f.
func (h *helper) with(ctx context.Context, f func(*session) error) (err error) {
	select {
	case h.permit <- struct{}{}:
		defer func() { <-h.permit }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if h.session == nil {
		if h.session, err = connect(ctx, h.config, readCommitted, "lock_wait_timeout", "1", "wait_timeout", "180"); err != nil {
			return err
		}
		if lost := h.lost; lost != nil { // its query would go on while the next one runs
			h.lost = nil
			if _ = h.session.kill(lost); !server.Sound(h.session.conn) {
				h.disconnect()
				return errLost
			}
		}
	}
	stop := context.AfterFunc(ctx, h.session.cut)
	err = f(h.session)
	if !stop() || err != nil && !server.Sound(h.session.conn) {
		if h.session.tookTooLong() {
			h.lost = h.session
		}
		h.disconnect()
	}
	h.used = time.Now()
	h.idle.Reset(Unused)
	return err
}

// ready reports whether the session can be used at once, and begins to connect if not.
func (h *helper) ready(ctx context.Context) bool {
	select {
	case h.permit <- struct{}{}:
	default:
		return false
	}
	connected := h.session != nil
	<-h.permit
	if !connected {
		h.opening.Go(func() { _ = h.with(ctx, (*session).ping) })
	}
	return connected
}

func (h *helper) disconnect() {
	if h.session != nil {
		h.session.close()
		h.session = nil
	}
}

// close ends the session. The contexts of all callers must have ended.
func (h *helper) close() {
	h.opening.Wait()
	h.idle.Stop()
	h.permit <- struct{}{}
	h.disconnect()
	<-h.permit
}

// wake calls the routine that wakes the leader of the table's gate.
func (h *helper) wake(ctx context.Context, table string) error {
	return h.with(ctx, func(s *session) error { return s.exec(answer, "CALL mqnotify_wake(?)", table) })
}

// kill ends the statement that the session runs.
func (h *helper) kill(ctx context.Context, s *session) error {
	ctx, cancel := context.WithTimeout(ctx, parting)
	defer cancel()
	return h.with(ctx, func(own *session) error { return own.kill(s) })
}
