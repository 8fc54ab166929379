package waiting

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/go-sql-driver/mysql"
)

// helper is the session of a process for short statements between two waits. It holds the pin: the lock that the
// process's leaders wait for and never get. Safe for concurrent use.
type helper struct {
	config *mysql.Config
	pin    string

	permit  chan struct{} // one slot; its holder may use the session
	session *session
	current atomic.Pointer[session] // the session, for cut
}

func newHelper(config *mysql.Config, pin string) *helper {
	return &helper{config: config, pin: pin, permit: make(chan struct{}, 1)}
}

// keep connects, and connects again when the connection is lost, until ctx ends.
func (h *helper) keep(ctx context.Context) {
	keep(ctx, nil, func() error {
		err := h.with(ctx, (*session).ping)
		if err == nil {
			pause(ctx, time.Minute) // a proxy may close a connection that is silent for longer
		}
		return err
	})
}

// with calls f with the session, and connects before if that is needed.
func (h *helper) with(ctx context.Context, f func(*session) error) error {
	select {
	case h.permit <- struct{}{}:
		defer func() { <-h.permit }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if h.session == nil {
		s, err := connect(ctx, h.config, readCommitted, "wait_timeout", "180")
		if err != nil {
			return err
		}
		var got sql.NullInt64
		// A leader that found the pin free may hold it for a moment.
		if err := s.ask(answer, "SELECT GET_LOCK(?, 2)", []any{h.pin}, &got); err != nil || got.Int64 != 1 {
			s.close()
			if err == nil {
				err = errPinLost
			}
			return err
		}
		h.session = s
		h.current.Store(s)
	}
	err := f(h.session)
	if err != nil && !h.session.sound() {
		h.session.close()
		h.session = nil
	}
	return err
}

// cut makes a statement under way fail.
func (h *helper) cut() {
	if s := h.current.Load(); s != nil {
		s.cut()
	}
}

// close ends the session. keep has returned.
func (h *helper) close() {
	if h.session != nil {
		h.session.close()
	}
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
