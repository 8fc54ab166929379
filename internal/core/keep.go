package core

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jmoiron/sqlx"
)

// askAgain is how often a session asks for its locks that is kept by pings: a proxy may
// have dealt a statement out, which nothing else tells.
const askAgain = time.Minute

var (
	errEnded   = errors.New("the server closed the connection")
	errTooLong = errors.New("a statement kept the session from asking for its locks")
	errNotOurs = errors.New("the server says that it is not this session's any more")
)

// keep looks after the session until it is closed or lost: it waits for the end of the idle
// connection, which costs no statement, and touches it well inside wait_timeout.
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

// touchIfFree touches the session when no statement uses it, if a touch is due then. A session with locks that
// does not come to it in time is lost.
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
		// Asked again: the statement under way may be the one that took the lock.
		if _, trusted := s.schedule(); !time.Now().Before(trusted) {
			s.fail(errTooLong)
		}
	case <-s.lost:
	}
}

// schedule is when the next touch is due, and until when the session may believe
// that it holds its locks: counted from the start of the statement that showed it,
// less a margin, so that it ends before the server gives them to others. Without
// locks there is nothing to believe, and trusted is merely some time ahead.
func (s *Session) schedule() (due, trusted time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.checked.Add(s.idle * 2 / 5)
	if len(s.locks) == 0 {
		return due, time.Now().Add(s.idle / 6)
	}
	return due, s.checked.Add(s.idle - s.idle/6)
}

// touch keeps the server from closing the session and checks that its locks are
// still its own: an answered ping of the session does both, unless the connection was
// used since the locks were asked for. The caller holds the permit.
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
	if err != nil { // a session that can't answer this is in doubt, whatever the error
		s.fail(err)
	}
}

func (s *Session) sinceAsked() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Since(s.asked)
}

// What is known of a session's pings. A proxy may answer them itself, while the server
// closes the session behind it and gives its locks away.
const (
	pingsUntried = iota
	pingsArrive
	pingsInVain
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

// tryPing finds out once whether the session itself gets the pings: it counts them. Some
// of them, since a proxy may send one of its own. A session without locks that is touched is
// one that waits, and has used the connection by its next touch.
func (s *Session) tryPing(ctx context.Context, conn *sqlx.Conn) error {
	if s.pings != pingsUntried || len(s.held()) == 0 {
		return nil
	}
	s.pings = pingsInVain
	const tries = 3
	before, err := s.commands(ctx, conn)
	for i := 0; i < tries && err == nil; i++ {
		err = conn.PingContext(ctx)
	}
	var after uint64
	if err == nil {
		err = conn.QueryRowxContext(ctx, otherCommands).Scan(new(string), &after)
	}
	if err != nil && !s.sound() {
		return err
	}
	if err == nil && after == before+tries {
		s.pings = pingsArrive
	}
	return nil // of a proxy that knows no pings, say
}

// otherCommands counts those of a session that are no statements.
const otherCommands = "SHOW SESSION STATUS LIKE 'Com_admin_commands'"

// commands counts them, if it is this session that answers.
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

// check asks whether the locks are still the session's. The caller holds the permit.
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
	s.checked = start // later would trust the server for the time the answer took
	for i, name := range names {
		if lock := s.locks[name]; !held[i] && lock != nil {
			delete(s.locks, name)
			lock.lose(errNotOurs)
		}
	}
	return nil
}

// held are the names of the locks that the session holds, for all it knows.
func (s *Session) held() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.locks))
}

// owned asks which of the locks are the session's.
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
