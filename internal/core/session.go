package core

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/jmoiron/sqlx"

	"github.com/mqnotify/mqnotify/internal/server"
)

// ErrSessionClosed is the cause of a loss that Close brought about.
var ErrSessionClosed = errors.New("the session was closed")

var errNoAnswer = errors.New("the server did not answer in time")

const (
	// answer is how long a statement that does not wait may take before its
	// connection counts as lost.
	answer = 10 * time.Second
	// connecting bounds the dial and the setting up of a session.
	connecting = 30 * time.Second
	// parting is how long Close lets a statement under way run on.
	parting = 100 * time.Millisecond
)

// SessionOptions are the settings of a pinned session.
type SessionOptions struct {
	// IdleTimeout is the session's wait_timeout, in whole seconds: how long the
	// server keeps it, and the locks it holds, when its host vanishes without
	// closing the connection. The session is touched when two fifths of it have
	// passed, and counts its locks as lost when nothing was heard for five sixths.
	// A touch is a ping where pings are seen to reach the session, and once a minute, or
	// after other statements, a question for its locks; behind a proxy that answers pings
	// itself always that.
	// 0 means 30 s, 3 s is the least.
	IdleTimeout time.Duration
}

// Session is one connection of its own, outside any pool, for what lives and
// dies with a connection: advisory locks, and statements that wait. It never
// reconnects: what it held is lost with it, and Lost tells, at once when the
// connection ends.
//
// Its methods may be called at the same time; statements run one after the other.
type Session struct {
	db   *sqlx.DB
	conn *sqlx.Conn
	id   uint64
	caps *server.Capabilities
	idle time.Duration

	shared bool // several callers use it, and none closes it

	permit chan struct{} // one slot: the goroutine that fills it may use the connection
	socket *idleReader   // the connection

	// These belong to the holder of the permit.
	used  bool // since asked, and not by a touch: a lock may have been let go
	pings int  // whether they reach the session

	kept    sync.WaitGroup // the goroutine of keep
	closing sync.Once
	closed  error

	mu      sync.Mutex
	locks   map[string]*Lock
	checked time.Time // when the newest statement or ping began that showed the locks to be held
	asked   time.Time // when the newest statement began that asked the server for the locks, over whichever session
	lost    chan struct{}
	cause   error
}

// NewSession connects and returns a pinned session, set up for waiting: autocommit,
// READ COMMITTED, UTC, no statement timeout, lock waits of 2 s at most, no entry
// in the slow log for a wait. The caller closes it. ctx is for connecting alone.
func NewSession(ctx context.Context, db *DB, options SessionOptions) (*Session, error) {
	if options.IdleTimeout == 0 {
		options.IdleTimeout = 30 * time.Second
	}
	if options.IdleTimeout < 3*time.Second {
		return nil, fmt.Errorf("notify: IdleTimeout of %v: 3s or more", options.IdleTimeout)
	}
	config := db.config.Clone()
	config.MultiStatements = true
	config.ReadTimeout = 0 // it would cut a wait short; contexts bound every read
	config.ParseTime = false
	config.Loc = time.UTC
	socket := &idleReader{users: 1}
	if dial := server.Dialer(config); dial != nil {
		config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			socket = newIdleReader(conn)
			return socket, nil
		}
	}
	connector, err := server.NewConnector(config)
	if err != nil {
		return nil, fmt.Errorf("notify: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, connecting, errNoAnswer)
	defer cancel()
	pool := sqlx.NewDb(sql.OpenDB(versionConnector{connector, db}), "mysql")
	pool.SetMaxOpenConns(1)
	conn, err := pool.Connx(ctx)
	if err != nil {
		_ = pool.Close()
		return nil, fmt.Errorf("notify: connect: %w", err)
	}
	s := &Session{
		db: pool, conn: conn, idle: options.IdleTimeout, permit: make(chan struct{}, 1), socket: socket,
		locks: make(map[string]*Lock), lost: make(chan struct{}), checked: time.Now(),
	}
	if err := s.setUp(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	s.socket.leave()
	s.kept.Go(s.keep)
	return s, nil
}

func (s *Session) setUp(ctx context.Context) error {
	caps, err := server.Discover(ctx, s.conn)
	if err != nil {
		return fmt.Errorf("notify: set up the session: %w", err)
	}
	s.caps = caps
	settings := caps.Settings(append(server.ForWaits(),
		"lock_wait_timeout", "2", // a year on MySQL: a read would queue behind an ALTER that waits
		"innodb_lock_wait_timeout", "2",
		"idle_transaction_timeout", "0",
		"wait_timeout", strconv.Itoa(int(s.idle.Seconds())),
	)...)
	for _, statement := range []string{"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED", settings} {
		if _, err := s.conn.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("notify: set up the session: %w", err)
		}
	}
	if err := s.conn.QueryRowxContext(ctx, "SELECT CONNECTION_ID()").Scan(&s.id); err != nil {
		return fmt.Errorf("notify: set up the session: %w", err)
	}
	return nil
}

// ID is the server's number of the session, CONNECTION_ID().
func (s *Session) ID() uint64 { return s.id }

// Capabilities is what the session's server can do.
func (s *Session) Capabilities() *server.Capabilities { return s.caps }

// Lost is closed when the connection, and with it every lock, is gone.
func (s *Session) Lost() <-chan struct{} { return s.lost }

// Err is why the session was lost, nil while it lives.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cause
}

// Do runs f with the connection, which no other caller uses meanwhile. f must neither
// keep it nor call the session's other methods. A context that ends while a
// statement runs costs the session: the driver closes the connection.
//
// While the session holds locks, f must take less than two fifths of IdleTimeout, or the
// session counts as lost, because it can't ask the server for its locks meanwhile.
func (s *Session) Do(ctx context.Context, f func(conn *sqlx.Conn) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	s.socket.enter()
	defer s.socket.leave()
	select {
	case s.permit <- struct{}{}:
	case <-s.lost:
		return s.Err()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	defer func() { <-s.permit }()
	s.used = true
	return s.use(ctx, f)
}

// ask is Do with a limit to the time that f takes, which does not count the time
// until f gets the permit.
func (s *Session) ask(ctx context.Context, limit time.Duration, f func(ctx context.Context, conn *sqlx.Conn) error) error {
	return s.Do(ctx, func(conn *sqlx.Conn) error {
		return s.Within(ctx, limit, func(ctx context.Context) error { return f(ctx, conn) })
	})
}

// Within runs f, whose statements, over the connection that Do gave, may take at most limit
// together. A session that takes longer counts as lost, and Err says so; the same holds when ctx
// ends meanwhile. The context that f gets is for these statements alone, and does not end: for a context
// that can end, database/sql and the driver each wake a goroutine at every statement, which is a
// quarter of the cost of a short one.
func (s *Session) Within(ctx context.Context, limit time.Duration, f func(ctx context.Context) error) error {
	if s.socket.Conn == nil { // which only the driver can cut off
		ctx, cancel := context.WithTimeoutCause(ctx, limit, errNoAnswer)
		defer cancel()
		err := f(ctx)
		if err != nil && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	late := time.AfterFunc(limit, func() { s.fail(errNoAnswer) })
	defer late.Stop()
	work := ctx
	if ctx.Done() != nil {
		work = context.WithoutCancel(ctx)
		defer context.AfterFunc(ctx, func() { s.fail(context.Cause(ctx)) })()
	}
	err := f(work)
	switch {
	case err == nil || s.Err() == nil:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	default:
		return fmt.Errorf("%w: %w", s.Err(), err) // which says whether anything was sent
	}
}

// use runs f; the caller holds the permit.
func (s *Session) use(ctx context.Context, f func(conn *sqlx.Conn) error) error {
	if err := s.Err(); err != nil {
		return err
	}
	err := f(s.conn)
	if err != nil && !s.sound() {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		s.fail(err)
	}
	return err
}

// sound reports whether the driver still trusts the connection. The caller holds the permit.
func (s *Session) sound() bool {
	valid := false
	err := s.conn.Raw(func(conn any) error {
		v, ok := conn.(driver.Validator)
		valid = !ok || v.IsValid()
		return nil
	})
	return err == nil && valid
}

// fail marks the session as lost and cuts its connection: a server that still has
// it would keep the locks from others.
func (s *Session) fail(cause error) {
	s.end(cause)
	s.socket.cut()
}

// end marks the session, and every lock it held, as lost.
func (s *Session) end(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cause != nil {
		return
	}
	s.cause = fmt.Errorf("notify: session lost: %w", cause)
	close(s.lost)
	for name, lock := range s.locks {
		delete(s.locks, name)
		lock.lose(s.cause)
	}
}

// Close ends the connection, and with it every lock that the session holds. It
// returns when nothing of the session runs any more; it may be called twice. A
// statement under way in Do is cut off.
func (s *Session) Close() error {
	s.closing.Do(func() {
		s.end(ErrSessionClosed)
		// A server that is told of the end, not cut off, logs nothing.
		cut := time.AfterFunc(parting, s.socket.cut)
		defer cut.Stop()
		s.permit <- struct{}{} // the last caller of Do has left, and no other enters
		s.kept.Wait()
		// Discarded, not handed back: Conn.Close would leave it to the pool.
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
		if err := s.db.Close(); err != nil {
			s.closed = fmt.Errorf("notify: close the session: %w", err)
		}
		s.socket.close()
	})
	return s.closed
}
