package core

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// askAgain is how often a session that is kept by pings also asks for its locks. A proxy may have sent a statement to another
// session, and only this question would show it.
const askAgain = time.Minute

var (
	errEnded   = errors.New("the server closed the connection")
	errTooLong = errors.New("a statement kept the session from asking for its locks")
	errNotOurs = errors.New("the server says that this session no longer holds the lock")
)

// keep watches the session until it is closed or lost. It waits for the end of the idle
// connection, which needs no statement, and touches the session well before wait_timeout.
func (s *Session) keep() {
	for s.Err() == nil {
		due, _ := s.schedule()
		timer := time.NewTimer(time.Until(due))
		select {
		case <-timer.C:
			s.touchIfFree()
		case <-s.socket.gone:
			s.fail(errEnded)
		case <-s.lost:
		}
		timer.Stop()
	}
}

// touchIfFree touches the session if a touch is due and no statement runs. A session with locks that
// can't be touched in time is lost.
func (s *Session) touchIfFree() {
	s.socket.enter()
	defer s.socket.leave()
	_, trusted := s.schedule()
	late := time.NewTimer(time.Until(trusted))
	defer late.Stop()
	select {
	case s.permit <- struct{}{}:
		if due, _ := s.schedule(); !time.Now().Before(due) {
			s.touch()
		}
		<-s.permit
	case <-late.C:
		// Read the schedule again, because the running statement may be the one that took the lock.
		if _, trusted := s.schedule(); !time.Now().Before(trusted) {
			s.fail(errTooLong)
		}
	case <-s.lost:
	}
}

// schedule returns when the next touch is due, and until when the session may trust that it holds its locks. Both count from the
// start of the statement that last showed the locks. trusted is earlier by a margin, so that it ends before the server gives the
// locks to other sessions. Without locks trusted is only some time ahead.
func (s *Session) schedule() (due, trusted time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.checked.Add(s.idle * 2 / 5)
	if len(s.locks) == 0 {
		return due, time.Now().Add(s.idle / 6)
	}
	return due, s.checked.Add(s.idle - s.idle/6)
}

// touch keeps the server from closing the session, and checks that the session still holds its locks. A ping that the session
// answers does both, unless the connection was used since the session last asked for the locks. The caller holds the permit.
func (s *Session) touch() {
	deadline := time.Now().Add(answer)
	if _, trusted := s.schedule(); len(s.held()) > 0 && trusted.Before(deadline) {
		deadline = trusted
	}
	ctx, cancel := context.WithDeadlineCause(context.Background(), deadline, errNoAnswer)
	defer cancel()
	err := s.use(ctx, func(conn *sqlx.Conn) error {
		if s.pings == pingsArrive && !s.used && s.sinceAsked() < askAgain {
			return s.ping(ctx, conn)
		}
		if err := s.check(ctx, conn); err != nil {
			return err
		}
		return s.tryPing(ctx, conn)
	})
	if err != nil { // after any error here the session can't be trusted
		s.fail(err)
	}
}

func (s *Session) sinceAsked() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.asked)
}

// The values of Session.pings. A proxy may answer pings itself, while the server closes the session behind it and gives its locks
// away.
const (
	pingsUntried = iota
	pingsArrive  // the session on the server counts the pings
	pingsLost    // it does not
)

func (s *Session) ping(ctx context.Context, conn *sqlx.Conn) error {
	start := time.Now()
	if err := conn.PingContext(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked = start
	return nil
}

// tryPing checks once whether the session on the server counts the pings. It sends several, because a proxy may send one of its own.
// It does nothing for a session without locks: if such a session is touched, it waits for a lock, and has used the connection by its
// next touch.
func (s *Session) tryPing(ctx context.Context, conn *sqlx.Conn) error {
	if s.pings != pingsUntried || len(s.held()) == 0 {
		return nil
	}
	s.pings = pingsLost
	const tries = 3
	before, err := s.commands(ctx, conn)
	for i := 0; i < tries && err == nil; i++ {
		err = conn.PingContext(ctx)
	}
	var after uint64
	if err == nil {
		err = conn.QueryRowxContext(ctx, otherCommands).Scan(new(string), &after)
	}
	if err != nil && !server.Sound(s.conn) {
		return err
	}
	if err == nil && after == before+tries {
		s.pings = pingsArrive
	}
	return nil // the error may come from a proxy that does not know pings
}

// otherCommands reads how many commands of a session were not statements.
const otherCommands = "SHOW SESSION STATUS LIKE 'Com_admin_commands'"

// commands returns the session's count. It fails if another session answers.
func (s *Session) commands(ctx context.Context, conn *sqlx.Conn) (n uint64, err error) {
	rows, err := conn.QueryContext(ctx, otherCommands+"; SELECT CONNECTION_ID()")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var id uint64
	for i, into := range [][]any{{new(string), &n}, {&id}} {
		if i > 0 && !rows.NextResultSet() || !rows.Next() {
			return 0, cmp.Or(rows.Err(), errNoAnswer)
		}
		if err := rows.Scan(into...); err != nil {
			return 0, err
		}
	}
	if id != s.id {
		return 0, errNotOurs
	}
	return n, nil
}

// check asks the server whether the session still holds its locks. The caller holds the permit.
func (s *Session) check(ctx context.Context, conn *sqlx.Conn) error {
	start, names := time.Now(), s.held()
	held, err := owned(ctx, conn, names...)
	if err != nil {
		return err
	}
	s.used = false
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = start
	s.checked = start // a later time would also trust the server for the time that the answer took
	for i, name := range names {
		if lock := s.locks[name]; !held[i] && lock != nil {
			delete(s.locks, name)
			lock.lose(errNotOurs)
		}
	}
	return nil
}

// held returns the names of the locks that the session believes to hold.
func (s *Session) held() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.locks))
}

// owned asks the server which of the locks the session holds.
func owned(ctx context.Context, conn *sqlx.Conn, names ...string) ([]bool, error) {
	query, args := "SELECT 1", []any{}
	held := make([]bool, len(names)+1)
	into := []any{&held[len(names)]}
	for i, name := range names {
		query += ", IS_USED_LOCK(?) <=> CONNECTION_ID()"
		args = append(args, name)
		into = append(into, &held[i])
	}
	err := conn.QueryRowxContext(ctx, query, args...).Scan(into...)
	return held[:len(names)], err
}
